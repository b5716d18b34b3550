//! Instances that no claim stands for.

use std::time::Duration;

use karp_domain::api::{Ec2NodeClass, labels};
use kube::Api;

use crate::support::aws::Thing;
use crate::support::stand::Stand;
use crate::support::{until, until_within};

/// An instance of which no claim tells is ended within this: seen twice, and for half a minute, by a controller that may have been started a while ago.
const COLLECTED: Duration = Duration::from_secs(180);

/// Instances of this cluster that no claim stands for are ended; those of others, of which some look much like them, are left alone.
pub async fn ended(stand: Stand) {
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let mut image = String::new();
    until("an image is found", async || {
        let status = classes.get(&stand.name).await.expect("the class").status.unwrap_or_default();
        image = status.amis.first().map(|found| found.id.clone()).unwrap_or_default();
        !image.is_empty()
    })
    .await;
    let (aws, name) = (&stand.aws, stand.name.as_str());
    let (ours, theirs) =
        (format!("kubernetes.io/cluster/{}", aws.cluster), format!("kubernetes.io/cluster/not-{name}"));
    let plant = |tags: &[(&str, &str)]| aws.plant(&Thing::Instance { image: &image }, tags);
    let (owned, foreign) = ((ours.as_str(), "owned"), (theirs.as_str(), "owned"));
    let (pool, class, claim) =
        ((labels::NODE_POOL, name), (labels::EC2_NODE_CLASS, name), ("karpenter.sh/nodeclaim", "nobody-x7f2k"));
    let unclaimed = [plant(&[owned, pool, class, claim]), plant(&[owned, pool, class])];
    let left = [
        ("of another cluster", plant(&[foreign, pool, class, claim])),
        ("of a node group", plant(&[owned])),
        ("of EKS Auto Mode", plant(&[owned, pool])),
        ("of nobody", plant(&[("Name", "somebody's own")])),
    ];

    let state = |id: &str| {
        let answer = aws.ec2(&format!("Action=DescribeInstances&InstanceId.1={id}"));
        let named = answer.split_once("<instanceState>").and_then(|(_, rest)| rest.split_once("<name>"));
        let (_, rest) = named.unwrap_or_else(|| panic!("a state of {id} in {answer}"));
        rest.split('<').next().unwrap_or_default().to_owned()
    };
    let ends = |id: &String| ["shutting-down", "terminated"].contains(&state(id).as_str());
    until_within(COLLECTED, "what nobody claims is ended", async || unclaimed.iter().all(ends)).await;
    for (whose, id) in &left {
        assert_eq!(state(id), "running", "one {whose}");
        aws.uproot(id).await;
    }
    // the pool that `leave` takes away
    stand.pool(&["spot"]).await;
    stand.leave().await;
}
