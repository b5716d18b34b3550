//! The life of the plugin process: arguments, handshake, serving, signals, end.

use std::io::{self, Write};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::Provider;
use crate::proto::goplugin;
use crate::proto::terraform::provider_server::ProviderServer;
use crate::server::transport::{Listener, TlsError, tls};
use crate::server::{Service, log};

/// What Terraform puts into the environment of a plugin, so that nobody else starts one by mistake.
const COOKIE: (&str, &str) =
    ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2");
/// The plugin protocol's major version that is served.
const PROTOCOL: &str = "6";
/// As Go providers allow; a state may be large.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// After a shutdown, calls in flight get this long; go-plugin kills a plugin after two seconds.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(1500);
/// After Terraform died or asked us to terminate, operations in flight get this long to return what exists.
const ORPHAN_GRACE: Duration = Duration::from_secs(10);
/// How often to look whether the parent process is still there.
const PARENT_LOOK: Duration = Duration::from_secs(2);

/// Serves a provider until Terraform ends it. Called from `main` inside a tokio runtime, before anything was written to
/// standard output; also answers `--help`, `--version` and `--debug` when a person runs the binary.
pub async fn serve(provider: impl Provider) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let started_by_terraform = std::env::var(COOKIE.0).is_ok_and(|value| value == COOKIE.1);
    let mode = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--version" | "-V"] => return say(&format!("terraform-provider-{} v{}", provider.name(), provider.version())),
        ["--help" | "-h"] => return say(&help(&provider)),
        ["--debug" | "-debug"] => Mode::Debug,
        [] if started_by_terraform => Mode::Managed,
        [] => {
            eprintln!("{}", help(&provider));
            return ExitCode::FAILURE;
        }
        _ => {
            eprintln!("unknown arguments: {}\n\n{}", arguments.join(" "), help(&provider));
            return ExitCode::from(2);
        }
    };
    log::install();
    match run(provider, mode).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Terraform started the process and ends it.
    Managed,
    /// A person started it; several runs of Terraform attach to it.
    Debug,
}

#[derive(Debug, thiserror::Error)]
enum ProcessError {
    #[error("Terraform asks for plugin protocol {0}; this provider serves 6 (Terraform 1.0 or OpenTofu 1.6 and newer)")]
    Protocol(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the plugin cannot listen: {0}")]
    Listen(#[from] io::Error),
    #[error("the plugin cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
}

async fn run(provider: impl Provider, mode: Mode) -> Result<(), ProcessError> {
    if let Ok(versions) = std::env::var("PLUGIN_PROTOCOL_VERSIONS")
        && mode == Mode::Managed
        && !versions.split(',').any(|version| version.trim() == PROTOCOL)
    {
        return Err(ProcessError::Protocol(versions));
    }
    let client = std::env::var("PLUGIN_CLIENT_CERT").ok().filter(|pem| !pem.is_empty() && mode == Mode::Managed);
    let (acceptor, own_certificate) = match client {
        Some(pem) => tls(&pem).map(|(acceptor, own)| (Some(acceptor), own))?,
        None => (None, String::new()),
    };
    let listener = Listener::open().await?;
    let greeting = match mode {
        Mode::Managed => {
            format!("1|{PROTOCOL}|{}|{}|grpc|{own_certificate}", listener.network, listener.address)
        }
        Mode::Debug => attach_text(&provider, listener.network, &listener.address),
    };
    let (connections, _socket) = listener.accept(acceptor);
    let end = CancellationToken::new();
    let service = Arc::new(Service::new(provider));
    // caught before Terraform knows of this process: from here on no signal can cut an operation in half
    let signals = [signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?, signal(SignalKind::terminate())?];
    tokio::spawn(watch_signals(signals, mode, service.clone(), end.clone()));

    // the last thing ever written to standard output
    let mut out = io::stdout();
    writeln!(out, "{greeting}")?;
    out.flush()?;

    let server = tonic::transport::Server::builder()
        .add_service(
            ProviderServer::new(service.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add_service(goplugin::grpc_controller_server::GrpcControllerServer::new(Controller { mode, end: end.clone() }))
        .add_service(goplugin::grpc_stdio_server::GrpcStdioServer::new(Stdio))
        .serve_with_incoming_shutdown(connections, end.clone().cancelled_owned());
    let serving = async {
        let served = tokio::select! {
            served = server => served.map_err(ProcessError::from),
            () = async { end.cancelled().await; tokio::time::sleep(SHUTDOWN_GRACE).await } => Ok(()),
        };
        end.cancel();
        served
    };
    // beside the calls in flight: there is no time for one after the other
    let closing = async {
        end.cancelled().await;
        service.provider.close().await;
    };
    tokio::join!(serving, closing).0
}

/// Ctrl-C reaches the whole process group; Terraform then asks for a stop by itself, so the signal is eaten here. So is that of a terminal that
/// closes: Terraform dies of it, or goes on (`nohup`). SIGTERM and the death of Terraform stop operations in flight and end the process.
async fn watch_signals(signals: [Signal; 3], mode: Mode, service: Arc<Service>, end: CancellationToken) {
    let [mut interrupt, mut hangup, mut terminate] = signals;
    let parent = std::os::unix::process::parent_id();
    let mut look = tokio::time::interval(PARENT_LOOK);
    loop {
        tokio::select! {
            _ = interrupt.recv() => match mode {
                Mode::Managed => tracing::info!("interrupt left to Terraform"),
                Mode::Debug => break end.cancel(),
            },
            _ = hangup.recv() => match mode {
                Mode::Managed => tracing::info!("hangup left to Terraform"),
                Mode::Debug => break end.cancel(),
            },
            _ = terminate.recv() => break tracing::info!("terminating"),
            _ = look.tick(), if mode == Mode::Managed => {
                if std::os::unix::process::parent_id() != parent {
                    break tracing::warn!("Terraform is gone");
                }
            }
        }
    }
    service.stop_token().cancel();
    service.idle(ORPHAN_GRACE).await;
    end.cancel();
}

struct Controller {
    mode: Mode,
    end: CancellationToken,
}

#[tonic::async_trait]
impl goplugin::grpc_controller_server::GrpcController for Controller {
    async fn shutdown(&self, _: Request<goplugin::Empty>) -> Result<Response<goplugin::Empty>, Status> {
        if self.mode == Mode::Managed {
            self.end.cancel();
        }
        Ok(Response::new(goplugin::Empty {}))
    }
}

struct Stdio;

#[tonic::async_trait]
impl goplugin::grpc_stdio_server::GrpcStdio for Stdio {
    type StreamStdioStream = Pin<Box<dyn Stream<Item = Result<goplugin::StdioData, Status>> + Send>>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        Err(Status::unimplemented("output goes to standard error"))
    }
}

fn say(text: &str) -> ExitCode {
    println!("{text}");
    ExitCode::SUCCESS
}

fn help(provider: &impl Provider) -> String {
    let (name, version, source) = (provider.name(), provider.version(), provider.source());
    format!(
        "terraform-provider-{name} v{version}\n\n\
         This is a plugin: Terraform and OpenTofu start it by themselves. Name it in a configuration:\n\n    \
         terraform {{\n      required_providers {{\n        {name} = {{\n          source = \"{source}\"\n        }}\n      }}\n    }}\n\n\
         Options for people:\n  --debug    serve without TLS and print TF_REATTACH_PROVIDERS for Terraform to attach to this process\n  \
         --version  print the version\n  --help     print this text"
    )
}

fn attach_text(provider: &impl Provider, network: &str, address: &str) -> String {
    let attach = serde_json::json!({
        "Protocol": "grpc", "ProtocolVersion": 6, "Pid": std::process::id(), "Test": true,
        "Addr": { "Network": network, "String": address },
    });
    let hosts = ["registry.terraform.io", "registry.opentofu.org"];
    let all: serde_json::Map<String, serde_json::Value> =
        hosts.into_iter().map(|host| (format!("{host}/{}", provider.source()), attach.clone())).collect();
    format!(
        "Attach Terraform or OpenTofu to this process with:\n\nexport TF_REATTACH_PROVIDERS='{}'",
        serde_json::Value::Object(all)
    )
}
