//! What the sandbox's in-process servers know of the sandbox that they serve.

use std::{path::PathBuf, time::Duration};

use crate::{port::Ports, process::Processes};

/// Everything that the node bridge and the process kubelet need; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Name of the sandbox, unique among those of this checkout.
    pub name: String,
    /// Admin client of the sandbox's API server.
    pub client: kube::Client,
    /// Admin kubeconfig file.
    pub kubeconfig: PathBuf,
    /// URL of the API server, `https://127.0.0.1:PORT`; also the issuer of service account tokens.
    pub api_server: String,
    /// Host and port of the API server, for `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub api_server_address: (String, u16),
    /// PEM file of the CA that signed the API server's certificate.
    pub ca_file: PathBuf,
    /// PEM file of the certificate that a kubelet serves, valid for 127.0.0.1.
    pub kubelet_cert_file: PathBuf,
    /// PEM file of that certificate's key (PKCS #8).
    pub kubelet_key_file: PathBuf,
    /// URL of the AWS emulator, without a slash at its end.
    pub aws_endpoint: String,
    /// Name of the EKS cluster that stands for this control plane.
    pub cluster_name: String,
    /// AWS region.
    pub region: String,
    /// AWS account id.
    pub account_id: String,
    /// Folder of this sandbox's files; gone after `down`.
    pub run_dir: PathBuf,
    /// Folder for log files; kept when a run fails.
    pub log_dir: PathBuf,
    /// The controller's binary: what the image `karp` means to the process kubelet.
    pub karp_binary: PathBuf,
    /// How long an instance that runs takes to become a Node.
    pub node_delay: Duration,
    /// Gives free ports.
    pub ports: Ports,
    /// Starts and ends child processes, and writes them down.
    pub processes: Processes,
}
