//! `karp crds`: the definitions as one YAML stream, for `kubectl apply -f -`.

use std::io::Write;

/// Prints every definition as a YAML document.
pub fn print() -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    for definition in karp_domain::api::crds() {
        writeln!(out, "---\n{}", serde_saphyr::to_string(&definition)?.trim_end())?;
    }
    Ok(())
}
