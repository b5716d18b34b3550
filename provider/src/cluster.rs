//! How to reach the cluster's API server: by what EKS says about the cluster, or by what the provider block says.

use base64::Engine as _;
use karp_kube::client::{Choice, Connection, Server};
use kube::config::ExecConfig;

use crate::provider::{self, Exec, Kubernetes};
use crate::report::{Failure, Kind};

/// Gives the connection to an EKS cluster with a token of the AWS credentials.
pub fn of_eks(cluster: &karp_aws::eks::Cluster, token: &karp_aws::token::Token) -> Connection {
    Connection::Server(Box::new(Server {
        host: cluster.endpoint.clone(),
        certificate_authority_data: Some(cluster.certificate_authority.clone()),
        token: Some(token.value.clone()),
        ..Server::default()
    }))
}

/// Gives the connection that the provider block describes.
pub fn of_block(given: &Kubernetes) -> Connection {
    if given.host.is_none() {
        let paths = given.config_path.iter().chain(given.config_paths.iter().flatten());
        return Connection::Kubeconfig {
            paths: paths.map(|path| provider::path(path)).collect(),
            choice: Choice {
                context: given.config_context.clone(),
                cluster: given.config_context_cluster.clone(),
                user: given.config_context_auth_info.clone(),
                proxy_url: given.proxy_url.clone(),
            },
        };
    }
    Connection::Server(Box::new(Server {
        host: given.host.clone().unwrap_or_default(),
        certificate_authority_data: given.cluster_ca_certificate.as_deref().map(base64),
        insecure: given.insecure.unwrap_or_default(),
        tls_server_name: given.tls_server_name.clone(),
        proxy_url: given.proxy_url.clone(),
        token: given.token.clone(),
        client_certificate_data: given.client_certificate.as_deref().map(base64),
        client_key_data: given.client_key.as_deref().map(base64),
        exec: given.exec.as_ref().map(exec),
    }))
}

/// Makes a client; nothing but an exec plugin is contacted.
pub async fn connect(connection: &Connection) -> Result<kube::Client, Failure> {
    karp_kube::client::connect(connection).await.map_err(|e| {
        Failure::new(Kind::Unconfigured, "set up a client of the cluster's API server", e.to_string())
            .with_fix("Check `kubernetes` in the provider block; on EKS, leave it out and set `cluster_name`.")
    })
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
        other: std::collections::BTreeMap::new(),
    }
}

/// Users write PEM; kubeconfigs hold it in base64.
fn base64(pem: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(pem)
}
