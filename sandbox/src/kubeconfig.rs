//! Kubeconfig files, written as JSON (which is YAML).

use std::path::Path;

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::pki::Pki;

/// Writes the admin's kubeconfig with everything embedded, so that it can be copied elsewhere.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write_admin(path: &Path, server: &str, pki: &Pki) -> Result<()> {
    let user = json!({
        "client-certificate-data": embedded(&pki.admin.cert)?,
        "client-key-data": embedded(&pki.admin.key)?,
    });
    let cluster = json!({ "server": server, "certificate-authority-data": embedded(&pki.ca)? });
    write(path, &cluster, &user)
}

/// Writes the file that tells the API server where its token webhook listens.
///
/// # Errors
/// When the file cannot be written.
pub fn write_webhook(path: &Path, url: &str) -> Result<()> {
    write(path, &json!({ "server": url }), &json!({}))
}

fn write(path: &Path, cluster: &Value, user: &Value) -> Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "sandbox", "cluster": cluster }],
        "users": [{ "name": "sandbox", "user": user }],
        "contexts": [{ "name": "sandbox", "context": { "cluster": "sandbox", "user": "sandbox" } }],
        "current-context": "sandbox",
    });
    std::fs::write(path, serde_json::to_vec_pretty(&config)?).with_context(|| format!("writing {}", path.display()))
}

fn embedded(path: &Path) -> Result<String> {
    Ok(STANDARD.encode(std::fs::read(path).with_context(|| format!("reading {}", path.display()))?))
}
