//! Whether a program runs by itself: an image `FROM scratch`, and a distribution with another C library, have no dynamic linker.

use anyhow::{Context as _, Result, bail, ensure};

/// 64-bit, little-endian, version 1: both architectures that are released.
const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01";
/// The type of the program header that names a dynamic linker.
const PT_INTERP: u32 = 3;

/// Checks that a program is for a machine (ELF's `e_machine`) and needs no dynamic linker. A static position-independent program is one
/// that relocates itself, and passes.
///
/// # Errors
/// When it is something else.
pub fn statically_linked(program: &[u8], machine: u16) -> Result<()> {
    const CUT: &str = "it is cut off: build it again";
    ensure!(program.starts_with(MAGIC), "it is no 64-bit little-endian ELF file: only Linux binaries are released");
    let found = u16::from_le_bytes(field(program, 18).context(CUT)?);
    ensure!(
        found == machine,
        "it is for the ELF machine {found}, its target is {machine}: name the target that it was built for"
    );
    let table = usize::try_from(u64::from_le_bytes(field(program, 32).context(CUT)?)).context(CUT)?;
    let size = usize::from(u16::from_le_bytes(field(program, 54).context(CUT)?));
    let count = usize::from(u16::from_le_bytes(field(program, 56).context(CUT)?));
    for number in 0..count {
        let kind = u32::from_le_bytes(field(program, table.saturating_add(number * size)).context(CUT)?);
        if kind == PT_INTERP {
            bail!(
                "it is linked dynamically, and would not run in an image without a C library: build it for a musl \
                 target, or with --target and RUSTFLAGS='-C target-feature=+crt-static', or leave --binaries out"
            );
        }
    }
    Ok(())
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A program with a header of each given type, and nothing else.
#[cfg(test)]
pub(super) fn fixture(machine: u16, headers: &[u32]) -> Vec<u8> {
    const HEADER: u64 = 64;
    const PROGRAM_HEADER: u16 = 56;
    let mut program = vec![0; HEADER as usize];
    program[..MAGIC.len()].copy_from_slice(MAGIC);
    program[18..20].copy_from_slice(&machine.to_le_bytes());
    program[32..40].copy_from_slice(&HEADER.to_le_bytes());
    program[54..56].copy_from_slice(&PROGRAM_HEADER.to_le_bytes());
    program[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
    for kind in headers {
        program.extend(kind.to_le_bytes());
        program.extend([0; PROGRAM_HEADER as usize - 4]);
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_static_programs_of_the_machine_pass() {
        // PT_LOAD, PT_DYNAMIC: a static position-independent program has both
        assert!(statically_linked(&fixture(62, &[1, 2]), 62).is_ok());
        assert!(statically_linked(&fixture(183, &[]), 183).is_ok());
        let refused = |program: &[u8]| statically_linked(program, 62).unwrap_err().to_string();
        assert!(refused(&fixture(62, &[1, PT_INTERP])).contains("linked dynamically"));
        assert!(refused(&fixture(183, &[1])).contains("machine 183"));
        assert!(refused(b"#!/bin/sh\n").contains("no 64-bit"));
        assert!(refused(&fixture(62, &[1, 1])[..100]).contains("cut off"));
        assert!(refused(MAGIC).contains("cut off"));
    }

    /// Cargo links tests dynamically, except for musl.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
    fn this_very_program_is_refused() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(statically_linked(&program, 62).unwrap_err().to_string().contains("linked dynamically"));
    }
}
