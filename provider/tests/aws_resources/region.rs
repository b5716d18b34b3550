//! Objects that live in another region than the provider block's. Each test ends on an empty plan, or with nothing left.

use serde_json::Value;

use crate::life::unique;
use crate::stand::{Sandbox, Stand};

const QUEUE: &str = "karp_interruption_queue.this";

fn queue(name: &str, region: Option<&str>) -> String {
    let region = region.map_or_else(String::new, |region| format!("  region = {region:?}\n"));
    format!("resource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n{region}}}\n")
}

fn provider_block(text: &str) -> String {
    format!("PROVIDER\n{text}")
}

#[tokio::test]
async fn a_queue_lives_in_a_region_of_its_own() {
    let Some(sandbox) = Sandbox::find("region") else { return };
    let other = if sandbox.region == "us-west-2" { "eu-west-1" } else { "us-west-2" };
    let (name, before) = (unique("region"), sandbox.what_exists());
    let sqs = sandbox.clients().await.in_region(other).sqs().clone();
    let stand = sandbox.stand(&provider_block(&queue(&name, Some(other))));
    stand.apply();
    stand.assert_empty_plan();
    let arn = stand.attribute(QUEUE, "arn");
    assert!(arn.as_str().is_some_and(|arn| arn.contains(other)), "{arn}");
    let url = sqs.get_queue_url().queue_name(&name).send().await.unwrap().queue_url.unwrap();
    assert_eq!(sandbox.what_exists(), before, "the provider's own region has nothing of it");

    // An import finds it there, by id and by identity.
    let by_id = format!("  id = \"{url}@{other}\"\n");
    let by_identity = format!("  identity = {{\n    url = {url:?}\n    region = {other:?}\n  }}\n");
    for how in [by_id, by_identity] {
        let import = format!("import {{\n  to = {QUEUE}\n{how}}}\n");
        let second = sandbox.stand(&provider_block(&(queue(&name, Some(other)) + &import)));
        let run = second.apply();
        let quiet = |(action, _): &(String, String)| action == "import" || action == "noop";
        assert!(run.errors().is_empty() && run.changes().iter().all(quiet), "{how}: {}", run.text);
        second.assert_empty_plan();
    }

    // Without a region of its own it moves to the provider's.
    stand.write(&provider_block(&queue(&name, None)));
    let run = stand.apply();
    assert_eq!(run.changes(), [("replace".to_owned(), QUEUE.to_owned())], "{}", run.text);
    stand.assert_empty_plan();
    assert!(sqs.get_queue_url().queue_name(&name).send().await.is_err(), "the old queue is left");

    // To write down where it is replaces nothing; then the provider block may look elsewhere.
    stand.write(&provider_block(&queue(&name, Some(&sandbox.region))));
    let run = stand.apply();
    assert_eq!(run.changes(), [("update".to_owned(), QUEUE.to_owned())], "{}", run.text);
    stand.assert_empty_plan();
    let elsewhere = sandbox.provider(&format!("  region = {other:?}"));
    stand.write(&(elsewhere + &queue(&name, Some(&sandbox.region))));
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn discovery_tags_reach_subnets_of_another_region() {
    let Some(sandbox) = Sandbox::find("region_tags") else { return };
    let other = if sandbox.region == "us-west-2" { "eu-west-1" } else { "us-west-2" };
    let ec2 = sandbox.clients().await.in_region(other).ec2().clone();
    let vpc = ec2.create_vpc().cidr_block("10.99.0.0/24").send().await.unwrap().vpc.unwrap().vpc_id.unwrap();
    let subnet = ec2.create_subnet().vpc_id(&vpc).cidr_block("10.99.0.0/26").send().await.unwrap();
    let subnet = subnet.subnet.unwrap().subnet_id.unwrap();
    let key = format!("karp.test/{}", unique("region"));
    let written = format!("  region = {other:?}\n");
    let tags = format!(
        "resource \"karp_discovery_tags\" \"this\" {{\n  resource_ids = [{subnet:?}]\n  key = {key:?}\n  value = \"x\"\n{written}}}\n"
    );
    let stand = sandbox.stand(&provider_block(&tags));
    stand.apply();
    stand.assert_empty_plan();
    let import = format!("import {{\n  to = karp_discovery_tags.this\n  id = \"{key},x,{subnet}@{other}\"\n}}\n");
    let second = sandbox.stand(&provider_block(&(tags.clone() + &import)));
    second.apply();
    second.assert_empty_plan();

    // Without a region of their own they follow the provider block; where that looks elsewhere, they are neither forgotten nor made again.
    let elsewhere = |own: &str| sandbox.provider(&format!("  region = {other:?}")) + &tags.replace(&written, own);
    stand.write(&elsewhere(""));
    let run = stand.apply();
    assert_eq!(run.changes(), [("update".to_owned(), "karp_discovery_tags.this".to_owned())], "{}", run.text);
    stand.assert_empty_plan();
    stand.write(&provider_block(&tags.replace(&written, "")));
    let state = stand.state();
    let told = stand.plan().one_error();
    assert!(
        told.contains("Wrong region or account") && told.contains(other) && told.contains(&sandbox.region),
        "{told}"
    );
    assert_eq!(stand.state(), state);
    stand.write(&elsewhere(""));
    stand.destroy();
    let left = ec2.describe_subnets().subnet_ids(&subnet).send().await.unwrap().subnets.unwrap_or_default();
    assert!(left[0].tags().is_empty(), "{left:?}");
    ec2.delete_subnet().subnet_id(&subnet).send().await.unwrap();
    ec2.delete_vpc().vpc_id(&vpc).send().await.unwrap();
}

/// What belongs to a cluster, for one in another region; roles have no region.
const OF_CLUSTER: &str = r#"PROVIDER
resource "karp_node_role" "this" {
  name = "NAME"
}
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME-fargate"
}
resource "karp_access_entry" "this" {
  region        = "REGION"
  cluster_name  = "NAME"
  principal_arn = karp_node_role.this.arn
TAGS
}
resource "karp_fargate_profile" "this" {
  region                 = "REGION"
  cluster_name           = "NAME"
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = SUBNETS
  selectors              = [{ namespace = "NAME" }]
TAGS
}
resource "karp_oidc_provider" "this" {
  region       = "REGION"
  cluster_name = "NAME"
TAGS
}
resource "karp_pod_identity_association" "this" {
  region          = "REGION"
  cluster_name    = "NAME"
  namespace       = "apps"
  service_account = "NAME"
  role_arn        = karp_node_role.this.arn
TAGS
}
"#;
const MEMBERS: [&str; 4] = [
    "karp_access_entry.this",
    "karp_fargate_profile.this",
    "karp_oidc_provider.this",
    "karp_pod_identity_association.this",
];

/// An attribute of each of [`MEMBERS`].
fn of_each(stand: &Stand<'_>, name: &str) -> [String; 4] {
    MEMBERS.map(|address| stand.attribute(address, name).as_str().unwrap().to_owned())
}

#[tokio::test]
async fn what_belongs_to_a_cluster_of_another_region_lives_there() {
    let Some(sandbox) = Sandbox::find("region_cluster") else { return };
    let other = if sandbox.region == "us-west-2" { "eu-west-1" } else { "us-west-2" };
    let (before, name) = (sandbox.what_exists(), unique("away"));
    let eks = sandbox.another_cluster(&name, other).await;
    let config = |tags: &str| {
        let config = OF_CLUSTER.replace("NAME", &name).replace("REGION", other).replace("TAGS", tags);
        config.replace("SUBNETS", &format!("{:?}", sandbox.subnet_ids))
    };
    let since = sandbox.last_call();
    let stand = sandbox.stand(&config(""));
    stand.apply();
    stand.assert_empty_plan();
    let arns = of_each(&stand, "arn");
    // IAM has no regions: an identity provider is that of an issuer, which has one.
    let of_eks = format!(":eks:{other}:");
    let lives = |arn: &String| arn.contains(&of_eks) || arn.contains(&format!("oidc.eks.{other}."));
    assert!(arns.iter().all(lives), "{arns:?}");

    let tagged = config("  tags = { step = \"two\" }");
    stand.write(&tagged);
    let mut changes = stand.apply().changes();
    changes.sort();
    assert_eq!(changes, MEMBERS.map(|address| ("update".to_owned(), address.to_owned())));
    stand.assert_empty_plan();
    for arn in arns.iter().filter(|arn| arn.contains(&of_eks)) {
        let tags = eks.list_tags_for_resource().resource_arn(arn).send().await.unwrap().tags.unwrap_or_default();
        assert_eq!(tags.get("step").map(String::as_str), Some("two"), "{arn}: {tags:?}");
    }

    // An import finds each there.
    let away = MEMBERS.into_iter().zip(of_each(&stand, "id").map(|id| format!("{id}@{other}")));
    let roles =
        [("karp_node_role.this", name.clone()), ("karp_fargate_pod_execution_role.this", format!("{name}-fargate"))];
    let import = |(address, id): (&str, String)| format!("import {{\n  to = {address}\n  id = {id:?}\n}}\n");
    let importer = sandbox.stand(&(tagged + &away.chain(roles).map(import).collect::<String>()));
    importer.apply().assert_imports_alone();
    importer.assert_empty_plan();

    stand.destroy();
    let of_it = |call: &Value| call["service"] == "eks" && call["params"].to_string().contains(&name);
    let calls = sandbox.calls(since).into_iter().filter(of_it);
    let at_home: Vec<Value> = calls.filter(|call| call["region"] != other).collect();
    assert_eq!(at_home, Vec::<Value>::new(), "nothing of it was looked for in the provider's own region");
    // EKS deletes no cluster that has a profile.
    eks.delete_cluster().name(&name).send().await.unwrap();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn what_is_looked_up_is_looked_up_in_the_region_that_is_named() {
    let Some(sandbox) = Sandbox::find("region_data") else { return };
    let other = if sandbox.region == "us-west-2" { "eu-west-1" } else { "us-west-2" };
    // The provider block is of another region than the cluster.
    let block = sandbox.provider(&format!("  region = {other:?}"));
    let data = |region: &str| {
        format!(
            "{block}data \"karp_cluster\" \"it\" {{\n  region = {region:?}\n}}\ndata \"karp_amis\" \"it\" {{\n  region = {region:?}\n  \
             ami_selector_terms = [{{ alias = \"al2023@latest\" }}]\n}}\n"
        )
    };
    let stand = sandbox.stand(&data(&sandbox.region));
    stand.apply();
    stand.assert_empty_plan();
    let arn = stand.attribute("karp_cluster.it", "arn");
    assert!(arn.as_str().is_some_and(|arn| arn.contains(&sandbox.region)), "{arn}");
    let subnets = stand.attribute("karp_cluster.it", "subnet_ids");
    assert_eq!(subnets.as_array().map(Vec::is_empty), Some(false), "{subnets}");
    assert_eq!(stand.attribute("karp_amis.it", "ids").as_array().map(Vec::is_empty), Some(false));
    stand.write(&data(other));
    let missing = stand.plan();
    assert!(missing.text.contains(&format!("in region {other}")), "{}", missing.text);
    stand.write(&data("Ireland"));
    assert!(stand.plan().text.contains("must be an AWS region"), "checked before anything is called");
}
