//! Keys and certificates of one sandbox's control plane, made anew for each.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize,
};

/// Names and addresses under which the API server is reached: from outside, and by pods through the service `kubernetes`.
const API_SERVER_NAMES: [&str; 5] = [
    "127.0.0.1",
    "localhost",
    "kubernetes.default.svc",
    "kubernetes.default",
    crate::control_plane::KUBERNETES_SERVICE_IP,
];

/// A certificate's PEM file and its key's.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Certificate.
    pub cert: PathBuf,
    /// Private key, PKCS #8.
    pub key: PathBuf,
}

/// All files that a control plane is given.
#[derive(Debug, Clone)]
pub struct Pki {
    /// Certificate of the CA that signed all others.
    pub ca: PathBuf,
    /// What the API server serves.
    pub api_server: Pair,
    /// Client certificate in the group `system:masters`.
    pub admin: Pair,
    /// Client certificate that the API server shows to kubelets.
    pub kubelet_client: Pair,
    /// What the process kubelet serves.
    pub kubelet: Pair,
    /// Private key that signs service account tokens (RSA, as on EKS: RS256).
    pub service_account_key: PathBuf,
    /// Its public key.
    pub service_account_public_key: PathBuf,
}

impl Pki {
    /// Makes all keys and certificates in a folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn make(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let ca = authority().context("making the CA")?;
        let ca_file = folder.join("ca.crt");
        std::fs::write(&ca_file, ca.pem())?;
        let issue = |name: &str, subject: &Subject<'_>| {
            subject.issue(folder, name, &ca).with_context(|| format!("making the certificate {name}"))
        };
        let loopback = ["127.0.0.1", "localhost"];
        let signer = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?;
        let (service_account_key, service_account_public_key) = (folder.join("sa.key"), folder.join("sa.pub"));
        write_secret(&service_account_key, &signer.serialize_pem())?;
        std::fs::write(&service_account_public_key, signer.public_key_pem())?;
        Ok(Self {
            ca: ca_file,
            api_server: issue("apiserver", &Subject::server("kube-apiserver", &API_SERVER_NAMES))?,
            admin: issue("admin", &Subject::client("admin", "system:masters"))?,
            kubelet_client: issue(
                "kubelet-client",
                &Subject::client("kube-apiserver-kubelet-client", "system:masters"),
            )?,
            kubelet: issue("kubelet", &Subject::server("process-kubelet", &loopback))?,
            service_account_key,
            service_account_public_key,
        })
    }
}

struct Subject<'a> {
    common_name: &'a str,
    organization: Option<&'a str>,
    names: &'a [&'a str],
}

impl<'a> Subject<'a> {
    fn server(common_name: &'a str, names: &'a [&'a str]) -> Self {
        Self { common_name, organization: None, names }
    }

    fn client(common_name: &'a str, organization: &'a str) -> Self {
        Self { common_name, organization: Some(organization), names: &[] }
    }

    fn issue(&self, folder: &Path, file: &str, ca: &CertifiedIssuer<'_, KeyPair>) -> Result<Pair> {
        let mut params = CertificateParams::new(self.names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, self.common_name);
        if let Some(organization) = self.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![if self.names.is_empty() {
            ExtendedKeyUsagePurpose::ClientAuth
        } else {
            ExtendedKeyUsagePurpose::ServerAuth
        }];
        let key = KeyPair::generate()?;
        let pair = Pair { cert: folder.join(format!("{file}.crt")), key: folder.join(format!("{file}.key")) };
        std::fs::write(&pair.cert, params.signed_by(&key, ca)?.pem())?;
        write_secret(&pair.key, &key.serialize_pem())?;
        Ok(pair)
    }
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "karp-sandbox-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn write_secret(path: &Path, pem: &str) -> Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(pem.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_readable_by_their_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::make(folder.path()).unwrap();
        for key in [&pki.service_account_key, &pki.admin.key, &pki.api_server.key] {
            assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(std::fs::read_to_string(&pki.service_account_public_key).unwrap().contains("BEGIN PUBLIC KEY"));
    }
}
