//! A client token that EC2 knows for another request.

use std::time::{Duration, Instant};

use karp_domain::api::NodeClaim;
use kube::ResourceExt;
use serde_json::json;

use crate::support::stand::Stand;
use crate::support::until;
use crate::{WATCH, exactly_one};

/// A token that stands for another request is left after a while.
pub async fn taken(stand: Stand) {
    stand.pool(&["spot"]).await;
    let taken = json!({ "action": "CreateFleet", "where": stand.name, "code": "IdempotentParameterMismatch", "status": 400, "times": 1000, "dry_runs": false });
    stand.aws.door("fail", &json!([taken]));
    stand.deployment(1, "500m").await;
    let attempt = async |stand: &Stand| {
        let claims = stand.mine::<NodeClaim>().await;
        claims.first().and_then(|claim| claim.annotations().get("karp.sh/launch-attempt").cloned())
    };
    until("the launch is refused", async || attempt(&stand).await.as_deref() == Some("1")).await;
    let begin = Instant::now();
    tokio::time::sleep(WATCH).await;
    assert_eq!(attempt(&stand).await.as_deref(), Some("1"), "what EC2 lists late is waited for");
    until("another attempt is made", async || attempt(&stand).await.as_deref() == Some("2")).await;
    assert!(begin.elapsed() < Duration::from_secs(45), "it came after {:?}", begin.elapsed());
    stand.aws.door("fail", &json!([{ "action": "CreateFleet", "where": stand.name, "times": 0 }]));
    stand.until_running(1).await;
    exactly_one(&stand).await;
    stand.leave().await;
}
