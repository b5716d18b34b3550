//! `karp crds`: the definitions as one YAML stream, for `kubectl apply --server-side -f -`.

use super::text::to_stdout;

/// Prints every definition as a YAML document.
pub fn print() -> anyhow::Result<()> {
    let mut all = String::new();
    for definition in karp_domain::api::crds() {
        all += &format!("---\n{}\n", serde_saphyr::to_string(&definition)?.trim_end());
    }
    to_stdout(|out| out.write_all(all.as_bytes()))
}
