//! A sandbox from start to end, on the real programs. Skipped when the tools are not built: `cargo sandbox up` builds them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{Api, Client, Config, api::PostParams};
use sandbox::{
    Options, Sandbox,
    layout::Layout,
    state::{Identity, State},
    tools::Tools,
};
use serde_json::json;

async fn start(name: &str) -> Result<Option<Sandbox>> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let layout = Layout::here()?;
    let Some(tools) = Tools::built(&layout)? else {
        println!("skipped: the sandbox's tools are not built");
        return Ok(None);
    };
    Ok(Some(Sandbox::start(&layout, &tools, Options::named(format!("{name}-{}", std::process::id()))).await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_on_a_fake_node_and_nothing_outlives_the_sandbox() -> Result<()> {
    let Some(sandbox) = start("test-pod").await? else { return Ok(()) };
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": "fake", "annotations": { "kwok.x-k8s.io/node": "fake" } },
        "status": { "capacity": { "cpu": "2", "memory": "4Gi", "pods": "10" } },
    }))?;
    Api::all(sandbox.client.clone()).create(&PostParams::default(), &node).await?;
    let pods = Api::<Pod>::namespaced(sandbox.client.clone(), "default");
    let pod = json!({ "metadata": { "name": "one" }, "spec": { "containers": [{ "name": "c", "image": "pause" }] } });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let begin = Instant::now();
    loop {
        let pod = pods.get("one").await?;
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        if phase == "Running" {
            break;
        }
        if begin.elapsed() > Duration::from_secs(30) {
            bail!("the pod is {phase} after 30 s; logs: {}", sandbox.log_dir.display());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    sandbox.check()?;
    let run_dir = sandbox.run_dir.clone();
    let state = State::read(&run_dir)?.context("a running sandbox has a state")?;
    assert!(state.processes.len() >= 6, "{:?}", state.processes);
    sandbox.stop().await?;
    let left: Vec<_> = state.processes.iter().filter(|one| one.identity.alive()).collect();
    assert!(left.is_empty() && !run_dir.exists(), "left: {left:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_the_tokens_of_eks_for_its_own_cluster() -> Result<()> {
    let Some(sandbox) = start("test-token").await? else { return Ok(()) };
    let issued = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let signed = |headers: &str| {
        let url = format!(
            "https://sts.{region}.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15&X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=sandbox%2F20260101%2F{region}%2Fsts%2Faws4_request&X-Amz-Date={issued}&X-Amz-Expires=60\
             &X-Amz-SignedHeaders={headers}&X-Amz-Signature=00",
            region = sandbox.region,
        );
        format!("k8s-aws-v1.{}", URL_SAFE_NO_PAD.encode(url))
    };
    assert!(namespaces(&sandbox, &signed("host%3Bx-k8s-aws-id")).await?.is_ok());
    let refused = namespaces(&sandbox, &signed("host")).await?;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 401), "{refused:?}");
    sandbox.stop().await
}

async fn namespaces(sandbox: &Sandbox, token: &str) -> Result<kube::Result<usize>> {
    let file = kube::config::Kubeconfig::read_from(&sandbox.kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(file, &Default::default()).await?;
    config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
    let client = Client::try_from(config)?;
    Ok(Api::<Namespace>::all(client).list(&Default::default()).await.map(|list| list.items.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_lost_a_program_says_which_and_dropping_it_ends_the_rest() -> Result<()> {
    let Some(sandbox) = start("test-loss").await? else { return Ok(()) };
    let state = State::read(&sandbox.run_dir)?.context("a running sandbox has a state")?;
    let scheduler = state.processes.iter().find(|one| one.name == "kube-scheduler").context("a scheduler runs")?;
    scheduler.identity.signal_group(nix::sys::signal::Signal::SIGKILL);
    let why = tokio::time::timeout(Duration::from_secs(5), sandbox.broken()).await?.to_string();
    assert!(why.contains("kube-scheduler"), "{why}");
    let (run_dir, rest): (_, Vec<Identity>) =
        (sandbox.run_dir.clone(), state.processes.into_iter().map(|one| one.identity).collect());
    drop(sandbox);
    assert!(rest.iter().all(|one| !one.alive()), "{rest:?}");
    std::fs::remove_dir_all(run_dir)?;
    Ok(())
}
