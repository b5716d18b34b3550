//! Who a pod is: its ServiceAccount's tokens in files, renewed as a kubelet does, and the AWS role that the account names.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::json;

use crate::Context;

/// The ServiceAccount's annotation that names its IAM role.
const ROLE: &str = "eks.amazonaws.com/role-arn";
/// The audience of a web identity token.
const STS: &str = "sts.amazonaws.com";
/// Life of a token, and when it is renewed: a kubelet renews at 80 % too.
const TOKEN_SECONDS: i64 = 3600;
const RENEWED_AFTER: Duration = Duration::from_secs(TOKEN_SECONDS as u64 * 8 / 10);

/// The identity files of one pod.
pub struct Identity {
    folder: PathBuf,
    account: String,
    role: Option<String>,
    kubernetes: bool,
    written: Option<Instant>,
}

impl Identity {
    /// Finds out who the pod is and writes its files into a folder.
    ///
    /// # Errors
    /// When the ServiceAccount does not exist or gives no token.
    pub async fn establish(ctx: &Context, pod: &Pod, folder: PathBuf) -> Result<Self> {
        let namespace = pod.namespace().unwrap_or_default();
        let spec = pod.spec.as_ref().context("the pod has a spec")?;
        let account = spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned());
        let accounts: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &namespace);
        let object = accounts.get(&account).await.with_context(|| format!("service account {namespace}/{account}"))?;
        let kubernetes =
            spec.automount_service_account_token.or(object.automount_service_account_token).unwrap_or(true);
        let role = object.annotations().get(ROLE).cloned();
        let mut identity = Self { folder, account, role, kubernetes, written: None };
        std::fs::create_dir_all(&identity.folder).with_context(|| format!("making {}", identity.folder.display()))?;
        identity.renew(ctx, pod).await?;
        if identity.kubernetes {
            identity.write_kubeconfig(ctx, &namespace)?;
        }
        Ok(identity)
    }

    /// Writes fresh tokens when they are due.
    ///
    /// # Errors
    /// When the API server gives none or a file cannot be written.
    pub async fn renew(&mut self, ctx: &Context, pod: &Pod) -> Result<()> {
        if self.written.is_some_and(|at| at.elapsed() < RENEWED_AFTER) {
            return Ok(());
        }
        if self.kubernetes {
            self.write_token(ctx, pod, "token", Vec::new()).await?;
        }
        if self.role.is_some() {
            self.write_token(ctx, pod, "aws-token", vec![STS.to_owned()]).await?;
        }
        self.written = Some(Instant::now());
        Ok(())
    }

    async fn write_token(&self, ctx: &Context, pod: &Pod, file: &str, audiences: Vec<String>) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &pod.namespace().unwrap_or_default());
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences,
                bound_object_ref: Some(bound),
                expiration_seconds: Some(TOKEN_SECONDS),
            },
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(&self.account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("a token for service account {}", self.account))?;
        let token = answer.status.context("the API server answers a token request with a token")?.token;
        replace(&self.folder.join(file), token.as_bytes())
    }

    fn write_kubeconfig(&self, ctx: &Context, namespace: &str) -> Result<()> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "pod",
            "clusters": [{ "name": "cluster", "cluster": { "server": ctx.api_server, "certificate-authority": ctx.ca_file } }],
            "users": [{ "name": "account", "user": { "tokenFile": self.folder.join("token") } }],
            "contexts": [{ "name": "pod", "context": { "cluster": "cluster", "user": "account", "namespace": namespace } }],
        });
        replace(&self.folder.join("kubeconfig"), config.to_string().as_bytes())
    }

    /// Returns the variables that lead to the files; those that the container sets itself are not overridden by the caller.
    pub fn variables(&self, ctx: &Context) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::from([
            ("AWS_ENDPOINT_URL".to_owned(), ctx.aws_endpoint.clone()),
            // Fargate has no instance metadata.
            ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
        ]);
        let mut set = |name: &str, value: String| _ = variables.insert(name.to_owned(), value);
        if self.kubernetes {
            set("KUBECONFIG", self.folder.join("kubeconfig").display().to_string());
        }
        if let Some(role) = &self.role {
            set("AWS_ROLE_ARN", role.clone());
            set("AWS_WEB_IDENTITY_TOKEN_FILE", self.folder.join("aws-token").display().to_string());
            set("AWS_STS_REGIONAL_ENDPOINTS", "regional".to_owned());
            set("AWS_REGION", ctx.region.clone());
            set("AWS_DEFAULT_REGION", ctx.region.clone());
        }
        variables
    }
}

/// Replaces a file at once, readable by its owner only.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    use std::{fs::OpenOptions, io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let fresh = path.with_extension("new");
    let write = || {
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh)?.write_all(content)?;
        std::fs::rename(&fresh, path)
    };
    write().with_context(|| format!("writing {}", path.display()))
}
