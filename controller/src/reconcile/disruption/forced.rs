//! Ends that nothing holds back: of nodes that are too old, and of those that are ill.

use std::sync::Arc;
use std::time::Duration;

use karp_domain::disruption::{Command, validate_each};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinSet, block_in_place};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{AT_ONCE, Context, Replacements, Run, abandon, count, finish, log, roll_back, taint};

/// Plans, and nodes that are tainted, wait no longer than this until the others are: an API server that hangs over one of them holds up no other for
/// longer, and no pod.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks commands with one look at the cluster, however many they are, and begins those that hold. Each runs by itself from then on.
pub(super) async fn begin(context: &Arc<Context>, forced: Vec<Command>, commands: &mut JoinSet<()>) {
    if forced.is_empty() {
        return;
    }
    // no plan is made until all of the nodes are seen to leave: their pods are planned for together
    let planning = context.planning.lock().await;
    let snapshot = context.snapshot().await;
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let (tainting, mut all_tainted) = mpsc::channel::<()>(1);
    let go = CancellationToken::new();
    let when_left = go.clone().drop_guard();
    for (command, answer) in block_in_place(|| validate_each(&forced, &snapshot)) {
        if let Err(invalid) = answer {
            abandon(context, command, &invalid);
            continue;
        }
        log(command);
        count(context, command);
        context.running.add(command);
        // whoever plans while a taint is on its way reckons with it
        command.candidates.iter().for_each(|candidate| context.assumed().tainted(&candidate.claim));
        let run = Run(context.clone(), command.clone());
        let (turns, tainting, go) = (turns.clone(), tainting.clone(), go.clone());
        let carried_out = async move {
            let turn = turns.acquire().await;
            let tainted = taint(&run.0, &run.1).await;
            drop((turn, tainting));
            match tainted {
                Ok(()) => {
                    // pods that leave now shall not come to a node that is about to leave
                    go.cancelled().await;
                    finish(&run.0, &run.1, &[]).await;
                }
                Err(failure) => roll_back(&run.0, &run.1, Replacements::Delete(&[]), &failure).await,
            }
        };
        commands.spawn(carried_out.instrument(tracing::Span::current()));
    }
    drop(tainting);
    // nobody sends anything: it ends when the last of them lets go of its sender
    let _ = tokio::time::timeout(PATIENCE, all_tainted.recv()).await;
    drop((planning, when_left));
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use karp_domain::api::labels;
    use karp_domain::disruption::{Candidate, Cause};
    use serde_json::json;

    use super::super::super::testing::Server;
    use super::*;

    /// A node that is a year old, of a claim that expires after an hour; the command that ends it.
    fn expired(server: &Server, name: &str) -> Command {
        let id = format!("aws:///us-east-1a/i-{name}");
        server.put(json!({
            "kind": "Node", "metadata": { "name": name, "uid": name }, "spec": { "providerID": id },
        }));
        let metadata = json!({ "name": name, "uid": name, "creationTimestamp": "2025-01-01T00:00:00Z" });
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        server.put(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata,
            "spec": { "requirements": [], "nodeClassRef": class, "expireAfter": "1h" },
            "status": { "providerID": id, "nodeName": name },
        }));
        let name: Arc<str> = name.into();
        let candidate =
            Candidate { claim: name.clone(), uid: name.clone(), node: Some(name), pool: "".into(), price: None };
        Command {
            cause: Cause::Expired,
            candidates: vec![candidate],
            placements: Vec::new(),
            replacements: Vec::new(),
            origin: None,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_that_the_api_server_hangs_over_holds_up_no_other() {
        let server = Server::default();
        let forced: Vec<Command> = ["a", "b", "c"].map(|name| expired(&server, name)).into();
        server.stall("PATCH nodes/b");
        let context = server.context().await;
        let mut commands = JoinSet::new();
        let (began, asked) = (Instant::now(), forced.clone());
        begin(&context, forced, &mut commands).await;
        assert!(began.elapsed() < 2 * PATIENCE, "{:?}", began.elapsed());
        assert!(context.planning.try_lock().is_ok(), "plans are made");
        let others = ["a", "c"].map(|name| format!("DELETE nodeclaims/{name}"));
        let mut patience = 400;
        while others.iter().any(|asked| server.asked(asked) == 0) && patience > 0 {
            patience -= 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(["a", "b", "c"].map(|name| server.asked(&format!("DELETE nodeclaims/{name}"))), [1, 0, 1]);
        assert!(context.running.ends(&asked[1]), "it is not begun again meanwhile");
        commands.abort_all();
        while commands.join_next().await.is_some() {}
        assert!(!context.running.contains("b"));
    }
}
