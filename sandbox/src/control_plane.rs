//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler of one sandbox.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{core::v1::ServiceAccount, rbac::v1::ClusterRoleBinding};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

use crate::{
    audit, kubeconfig,
    pki::Pki,
    port::Ports,
    process::{Handle, Processes},
    tools::Tools,
};

/// Addresses of services.
pub const SERVICE_CIDR: &str = "10.0.0.0/16";
/// The first of them, which the API server gives to the service `kubernetes`.
pub const KUBERNETES_SERVICE_IP: &str = "10.0.0.1";
/// The release that `tools/control-plane/go.mod` pins.
pub const KUBERNETES_VERSION: &str = "1.36";

/// How long the API server may take to be ready: 4 s on a quiet machine, more beside a compiler.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How often it is asked.
const POLL: Duration = Duration::from_millis(100);
/// Client rates of controller-manager and scheduler, so that the stand is not the limit of a load test (defaults: 20 and 50).
const CLIENT_RATE: [&str; 2] = ["--kube-api-qps=2000", "--kube-api-burst=4000"];

/// A control plane that runs.
#[derive(Clone)]
pub struct ControlPlane {
    /// URL of the API server.
    pub url: String,
    /// Its port.
    pub port: u16,
    /// The admin's kubeconfig file.
    pub kubeconfig: PathBuf,
    /// The admin's client.
    pub client: Client,
    /// Keys and certificates.
    pub pki: Pki,
    children: Vec<Handle>,
}

/// A control plane before it runs: its port and keys are known, so that others can be told of them.
pub struct Plan {
    /// URL that the API server will have; also the issuer of service account tokens.
    pub url: String,
    /// Keys and certificates.
    pub pki: Pki,
    port: u16,
    run_dir: PathBuf,
}

/// Where the API server of a sandbox logs what service accounts ask of it.
pub fn audit_log(run_dir: &Path) -> PathBuf {
    run_dir.join("audit.log")
}

impl Plan {
    /// Picks the port and makes the keys.
    ///
    /// # Errors
    /// When there is no free port or the keys cannot be written.
    pub fn make(run_dir: &Path, ports: &Ports) -> Result<Self> {
        let port = ports.pick()?;
        let pki = Pki::make(&run_dir.join("pki"))?;
        Ok(Self { url: format!("https://127.0.0.1:{port}"), pki, port, run_dir: run_dir.to_path_buf() })
    }

    /// Starts everything and waits until pods can be created. Bearer tokens that the API server does not know are reviewed at
    /// `token_review`, an URL that takes `TokenReview` objects.
    ///
    /// # Errors
    /// When a program ends or the API server is not ready in time.
    pub async fn start(
        self,
        tools: &Tools,
        ports: &Ports,
        processes: &Processes,
        token_review: &str,
    ) -> Result<ControlPlane> {
        let (etcd, etcd_url) = self.start_etcd(tools, ports, processes)?;
        let api_server = self.start_api_server(tools, processes, &etcd_url, token_review)?;
        let kubeconfig = self.run_dir.join("kubeconfig");
        kubeconfig::write_admin(&kubeconfig, &self.url, &self.pki)?;
        let client = client(&kubeconfig).await?;
        let mut children = vec![etcd, api_server];
        wait_ready(&client, &children).await?;
        children.push(self.start_controller_manager(tools, ports, processes, &kubeconfig)?);
        children.push(start_scheduler(tools, ports, processes, &kubeconfig)?);
        wait_service_account(&client, &children).await?;
        open_issuer(&client).await?;
        Ok(ControlPlane { url: self.url, port: self.port, kubeconfig, client, pki: self.pki, children })
    }

    fn start_etcd(&self, tools: &Tools, ports: &Ports, processes: &Processes) -> Result<(Handle, String)> {
        let (client, peer) =
            (format!("http://127.0.0.1:{}", ports.pick()?), format!("http://127.0.0.1:{}", ports.pick()?));
        let mut command = tools.service("etcd");
        command
            .arg("--data-dir")
            .arg(self.run_dir.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            // Nobody needs this data after a crash of the machine.
            .args(["--unsafe-no-fsync", "--log-level", "warn"]);
        Ok((processes.start("etcd", &mut command)?, client))
    }

    fn start_api_server(&self, tools: &Tools, processes: &Processes, etcd: &str, token_review: &str) -> Result<Handle> {
        let webhook = self.run_dir.join("token-webhook.json");
        kubeconfig::write_webhook(&webhook, token_review)?;
        let pki = &self.pki;
        let mut command = tools.service("kube-apiserver");
        command
            .arg(format!("--etcd-servers={etcd}"))
            .arg(format!("--secure-port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"])
            .arg(format!("--service-cluster-ip-range={SERVICE_CIDR}"))
            .args(["--authorization-mode=RBAC", "--allow-privileged=true"])
            .args(["--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"])
            .arg(flag("--tls-cert-file", &pki.api_server.cert))
            .arg(flag("--tls-private-key-file", &pki.api_server.key))
            .arg(flag("--client-ca-file", &pki.ca))
            .arg(format!("--service-account-issuer={}", self.url))
            .arg(flag("--service-account-key-file", &pki.service_account_public_key))
            .arg(flag("--service-account-signing-key-file", &pki.service_account_key))
            .arg(flag("--kubelet-client-certificate", &pki.kubelet_client.cert))
            .arg(flag("--kubelet-client-key", &pki.kubelet_client.key))
            .arg("--kubelet-preferred-address-types=InternalIP")
            .arg(flag("--authentication-token-webhook-config-file", &webhook))
            .args(["--authentication-token-webhook-version=v1", "--authentication-token-webhook-cache-ttl=10s"])
            .arg("--shutdown-watch-termination-grace-period=0s")
            .args(audit::arguments(&self.run_dir.join("audit-policy.json"), &audit_log(&self.run_dir))?);
        processes.start("kube-apiserver", &mut command)
    }

    fn start_controller_manager(
        &self,
        tools: &Tools,
        ports: &Ports,
        processes: &Processes,
        kubeconfig: &Path,
    ) -> Result<Handle> {
        let mut command = tools.service("kube-controller-manager");
        command
            .arg(flag("--kubeconfig", kubeconfig))
            .arg(flag("--authentication-kubeconfig", kubeconfig))
            .arg(flag("--authorization-kubeconfig", kubeconfig))
            .arg(flag("--service-account-private-key-file", &self.pki.service_account_key))
            .arg(flag("--root-ca-file", &self.pki.ca))
            .args(["--bind-address=127.0.0.1", &format!("--secure-port={}", ports.pick()?)])
            .args(["--leader-elect=false", "--use-service-account-credentials=false"])
            // nodelifecycle stays on: it takes the not-ready taint off a Node.
            .args(["--controllers=*,-nodeipam,-cloud-node-lifecycle", "--node-monitor-period=2s"])
            .args(["--concurrent-replicaset-syncs=20", "--concurrent-deployment-syncs=20"])
            .args(CLIENT_RATE);
        processes.start("kube-controller-manager", &mut command)
    }
}

impl ControlPlane {
    /// Fails when one of its programs has ended.
    ///
    /// # Errors
    /// With the end of that program's log.
    pub fn check(&self) -> Result<()> {
        self.children.iter().try_for_each(Handle::check)
    }
}

fn start_scheduler(tools: &Tools, ports: &Ports, processes: &Processes, kubeconfig: &Path) -> Result<Handle> {
    let mut command = tools.service("kube-scheduler");
    command
        .arg(flag("--kubeconfig", kubeconfig))
        .arg(flag("--authentication-kubeconfig", kubeconfig))
        .arg(flag("--authorization-kubeconfig", kubeconfig))
        .args(["--bind-address=127.0.0.1", &format!("--secure-port={}", ports.pick()?)])
        .arg("--leader-elect=false")
        .args(CLIENT_RATE);
    processes.start("kube-scheduler", &mut command)
}

/// Connects as the kubeconfig file says, and to nothing else.
///
/// # Errors
/// When the file cannot be understood.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("reading {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

async fn wait_ready(client: &Client, children: &[Handle]) -> Result<()> {
    until("the API server to be ready", children, || async {
        let request = http::Request::get("/readyz").body(Vec::new())?;
        Ok(client.request_text(request).await.map(|_| ())?)
    })
    .await
}

/// Pods can be created in `default` only when the controller-manager has made its service account.
async fn wait_service_account(client: &Client, children: &[Handle]) -> Result<()> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    until("the service account default/default", children, || async { Ok(accounts.get("default").await.map(|_| ())?) })
        .await
}

async fn until<F>(what: &str, children: &[Handle], mut attempt: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let begin = Instant::now();
    loop {
        children.iter().try_for_each(Handle::check)?;
        let error = match tokio::time::timeout(READY_LIMIT, attempt()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("no answer"),
        };
        if begin.elapsed() > READY_LIMIT {
            let logs: Vec<String> = children.iter().map(|child| child.log.display().to_string()).collect();
            bail!("waited {} s for {what}: {error:#}; logs: {}", READY_LIMIT.as_secs(), logs.join(", "));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// On EKS anyone may read the issuer's discovery document and keys; here the API server itself serves them.
async fn open_issuer(client: &Client) -> Result<()> {
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": "sandbox:service-account-issuer-discovery" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:service-account-issuer-discovery",
        },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated" }],
    }))?;
    Api::<ClusterRoleBinding>::all(client.clone())
        .patch("sandbox:service-account-issuer-discovery", &PatchParams::apply("sandbox"), &Patch::Apply(&binding))
        .await
        .context("opening the issuer's discovery document")?;
    Ok(())
}

fn flag(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
