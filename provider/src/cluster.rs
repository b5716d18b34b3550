//! Clients of the cluster's API server: by what EKS says about the cluster, or by what the provider block says.

use kube::config::{
    AuthInfo, Cluster, Context, ExecConfig, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
};

use crate::provider::{Exec, Kubernetes};
use crate::report::{Failure, Kind};

const NAME: &str = "karp";

/// Connects to an EKS cluster with a token of the AWS credentials.
pub async fn connect_eks(
    cluster: &karp_aws::eks::Cluster,
    token: &karp_aws::token::Token,
) -> Result<kube::Client, Failure> {
    let server = Cluster {
        server: Some(cluster.endpoint.clone()),
        certificate_authority_data: Some(cluster.certificate_authority.clone()).filter(|ca| !ca.is_empty()),
        ..Cluster::default()
    };
    let user = AuthInfo { token: Some(token.value.clone().into()), ..AuthInfo::default() };
    connect(server, user).await
}

/// Connects as the provider block says.
pub async fn connect_given(given: &Kubernetes) -> Result<kube::Client, Failure> {
    if let Some(path) = &given.config_path {
        let doing = format!("read the kubeconfig {path:?}");
        let unusable = |e: kube::config::KubeconfigError| {
            Failure::new(Kind::Unconfigured, &doing, e.to_string())
                .with_fix("Check `kubernetes.config_path` and `kubernetes.config_context` in the provider block.")
        };
        let file = Kubeconfig::read_from(path).map_err(unusable)?;
        let options = KubeConfigOptions { context: given.config_context.clone(), ..KubeConfigOptions::default() };
        let config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(unusable)?;
        return client(config);
    }
    let server = Cluster {
        server: given.host.clone(),
        insecure_skip_tls_verify: given.insecure,
        certificate_authority_data: given.cluster_ca_certificate.as_deref().map(base64),
        tls_server_name: given.tls_server_name.clone(),
        ..Cluster::default()
    };
    let user = AuthInfo {
        token: given.token.clone().map(Into::into),
        client_certificate_data: given.client_certificate.as_deref().map(base64),
        client_key_data: given.client_key.as_deref().map(|key| base64(key).into()),
        exec: given.exec.as_ref().map(exec),
        ..AuthInfo::default()
    };
    connect(server, user).await
}

async fn connect(server: Cluster, user: AuthInfo) -> Result<kube::Client, Failure> {
    let name = NAME.to_owned();
    let context = Context { cluster: name.clone(), user: Some(name.clone()), ..Context::default() };
    let kubeconfig = Kubeconfig {
        clusters: vec![NamedCluster { name: name.clone(), cluster: Some(server), ..Default::default() }],
        auth_infos: vec![NamedAuthInfo { name: name.clone(), auth_info: Some(user), ..Default::default() }],
        contexts: vec![NamedContext { name: name.clone(), context: Some(context), ..Default::default() }],
        current_context: Some(name),
        ..Kubeconfig::default()
    };
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    client(config.map_err(|e| unusable(&e))?)
}

fn client(config: kube::Config) -> Result<kube::Client, Failure> {
    kube::Client::try_from(config).map_err(|e| unusable(&e))
}

fn unusable(error: &dyn std::error::Error) -> Failure {
    Failure::new(Kind::Unconfigured, "set up a client of the cluster's API server", error.to_string())
        .with_fix("Check `kubernetes` in the provider block; on EKS, leave it out and set `cluster_name`.")
}

fn exec(given: &Exec) -> ExecConfig {
    let env = |(name, value): (&String, &String)| {
        [("name".to_owned(), name.clone()), ("value".to_owned(), value.clone())].into_iter().collect()
    };
    ExecConfig {
        api_version: Some(given.api_version.clone()),
        command: Some(given.command.clone()),
        args: Some(given.args.clone()),
        env: Some(given.env.iter().map(env).collect()),
        drop_env: None,
        install_hint: None,
        interactive_mode: None,
        provide_cluster_info: false,
        cluster: None,
        other: Default::default(),
    }
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
