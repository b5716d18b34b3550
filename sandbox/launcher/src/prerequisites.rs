//! What must be on the machine before anything else happens, and how to get what is missing.

use std::{fmt, process::Command};

/// The oldest Go that fetches newer toolchains as modules by itself.
const OLDEST_GO: (u32, u32) = (1, 21);
/// The oldest Python that the emulator's packages support.
const OLDEST_PYTHON: (u32, u32) = (3, 10);
/// The oldest Node.js that the other evaluator of IAM policies is tried with: Debian 12's.
const OLDEST_NODE: (u32, u32) = (18, 0);

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A sandbox runs, with or without the demo in it.
    Sandbox,
    /// All is verified.
    Verify,
}

/// Something that is missing or too old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    what: String,
    fix: &'static str,
}

/// All that a machine lacks; displayed with a fix for each.
#[derive(Debug)]
pub struct Lacks(Vec<Lack>);

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this machine lacks what the sandbox and its tests are built with:")?;
        self.0.iter().try_for_each(|lack| write!(f, "\n  - {}\n    fix: {}", lack.what, lack.fix))
    }
}

impl std::error::Error for Lacks {}

/// Looks for everything at once.
///
/// # Errors
/// When something lacks: all of it.
pub fn check(work: Work) -> Result<(), Lacks> {
    let mut found = vec![go(), python(), c_tools()];
    if work == Work::Verify {
        found.push(node());
    }
    let lacks: Vec<Lack> = found.into_iter().filter_map(Result::err).collect();
    if lacks.is_empty() { Ok(()) } else { Err(Lacks(lacks)) }
}

fn go() -> Result<(), Lack> {
    const FIX: &str = "install Go 1.21 or newer (https://go.dev/doc/install, or your system's package `golang-go`) and put `go` on PATH";
    let found = output("go", &["version"]);
    at_least("Go", found.as_deref(), go_version, OLDEST_GO, FIX)
}

fn python() -> Result<(), Lack> {
    const FIX: &str =
        "install Python 3.10 or newer with its venv module (Debian and Ubuntu: `apt-get install python3 python3-venv`)";
    let found = output("python3", &["--version"]);
    at_least("Python", found.as_deref(), python_version, OLDEST_PYTHON, FIX)?;
    if output("python3", &["-c", "import venv, ensurepip"]).is_none() {
        return Err(Lack { what: "Python's venv module is missing".to_owned(), fix: FIX });
    }
    Ok(())
}

/// A tool of the tests is a package of npm (`sandbox/tools/iam-simulate`).
fn node() -> Result<(), Lack> {
    const FIX: &str = "install Node.js 18 or newer with npm (Debian and Ubuntu: `apt-get install nodejs npm`); only `cargo verify` needs it";
    let found = output("node", &["--version"]);
    at_least("Node.js", found.as_deref(), node_version, OLDEST_NODE, FIX)?;
    if output("npm", &["--version"]).is_none() {
        return Err(Lack { what: "npm is missing (Node.js is there)".to_owned(), fix: FIX });
    }
    Ok(())
}

fn c_tools() -> Result<(), Lack> {
    let needed = [("cc", "a C compiler is missing (no `cc` on PATH)"), ("make", "make is missing (no `make` on PATH)")];
    match needed.into_iter().find(|(command, _)| output(command, &["--version"]).is_none()) {
        None => Ok(()),
        Some((_, what)) => Err(Lack {
            what: what.to_owned(),
            fix: "install it (Debian and Ubuntu: `apt-get install build-essential`; macOS: `xcode-select --install`)",
        }),
    }
}

type Version = (u32, u32);

fn at_least(
    name: &str,
    found: Option<&str>,
    parse: fn(&str) -> Option<Version>,
    oldest: Version,
    fix: &'static str,
) -> Result<(), Lack> {
    let lack = |what: String| Err(Lack { what, fix });
    match found.map(|text| (text, parse(text))) {
        None => lack(format!("{name} is missing")),
        Some((text, None)) => lack(format!("{name} answers its version as {:?}, which is not understood", text.trim())),
        Some((_, Some(version))) if version < oldest => {
            lack(format!("{name} {}.{} is too old: {}.{} is needed", version.0, version.1, oldest.0, oldest.1))
        }
        Some(_) => Ok(()),
    }
}

/// `go version go1.26.8 linux/amd64`, `go version devel go1.27-abc …`
fn go_version(text: &str) -> Option<Version> {
    text.split_whitespace().filter_map(|word| word.strip_prefix("go")).find_map(numbers)
}

/// `Python 3.11.7`
fn python_version(text: &str) -> Option<Version> {
    numbers(text.trim().strip_prefix("Python ")?)
}

/// `v20.20.2`
fn node_version(text: &str) -> Option<Version> {
    numbers(text.trim().strip_prefix('v')?)
}

fn numbers(text: &str) -> Option<Version> {
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
    Some((major, minor.parse().ok()?))
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    // A toolchain line in some parent's go.mod must not make `go version` fetch anything.
    let answer = Command::new(program).args(arguments).env("GOTOOLCHAIN", "local").output().ok()?;
    answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_programs_tell_them() {
        assert_eq!(go_version("go version go1.26.8 linux/amd64\n"), Some((1, 26)));
        assert_eq!(go_version("go version devel go1.27-5a2b3 Tue linux/arm64"), Some((1, 27)));
        assert_eq!(go_version("go version go1.22rc1 linux/amd64"), Some((1, 22)));
        assert_eq!(python_version("Python 3.11.7\n"), Some((3, 11)));
        assert_eq!(python_version("Python 3.14.0rc2"), Some((3, 14)));
        assert_eq!(node_version("v20.20.2\n"), Some((20, 20)));
        assert_eq!(go_version("gopher"), None);
    }

    #[test]
    fn what_lacks_is_named_with_its_fix() {
        let check = |found| at_least("Go", found, go_version, OLDEST_GO, "install Go");
        assert_eq!(check(Some("go version go1.21.0 linux/amd64")), Ok(()));
        assert_eq!(check(None).unwrap_err(), Lack { what: "Go is missing".to_owned(), fix: "install Go" });
        let old = check(Some("go version go1.9.7 linux/amd64")).unwrap_err();
        assert_eq!(old.what, "Go 1.9 is too old: 1.21 is needed");
        assert!(check(Some("hello")).unwrap_err().what.contains("not understood"));
    }
}
