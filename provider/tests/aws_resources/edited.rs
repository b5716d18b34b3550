//! What others changed at AWS is shown and put right; what changes in place stays the same object; what cannot change gives way. The
//! resources share their applies, and each step ends on an empty plan.

use aws_sdk_ec2::types::{Filter, Tag};
use aws_sdk_eks::types::{PodIdentityAssociation, VpcConfigRequest};
use serde_json::{Value, json};

use crate::life::unique;
use crate::stand::{Sandbox, Stand};
use crate::teardown::Kubectl;

/// All that one apply makes, on inputs that are known after others are made.
const CONFIG: &str = r#"PROVIDER
resource "terraform_data" "volume" {
  input = "arn:aws:ec2:*:*:volume/NAME"
}
resource "karp_node_role" "one" {
  name = "NAME-1"
}
resource "karp_node_role" "two" {
  name = "NAME-2"
}
resource "karp_instance_profile" "this" {
  name      = "NAME"
  role_name = karp_node_role.ROLE.name
}
resource "karp_access_entry" "this" {
  principal_arn = karp_node_role.one.arn
}
resource "karp_fargate_pod_execution_role" "this" {
  name = "NAME-fargate"
}
resource "karp_fargate_profile" "this" {
  name                   = "NAME"
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = ALL_SUBNETS
  selectors              = [{ namespace = "NAME" }]
}
resource "karp_oidc_provider" "this" {
  cluster_name = "CLUSTER"
}
resource "karp_discovery_tags" "this" {
  resource_ids = SUBNETS
  key          = "karp.test/NAME"
  value        = "VALUE"
}
resource "karp_controller_role" "this" {
  name            = "NAME-controller"
  auth            = "pod_identity"
  service_account = "NAME"
  node_role_arns  = [karp_node_role.one.arn]
}
resource "karp_pod_identity_association" "this" {
  namespace       = "apps"
  service_account = "ACCOUNT"
  role_arn        = karp_node_role.one.arn
}
resource "karp_controller_policy" "this" {
  name           = "POLICY"
  node_role_arns = [karp_node_role.one.arn]
  extra_statements = [{
    actions   = ["ec2:DescribeTags"]
    resources = [terraform_data.volume.output]
  }]
}
"#;

const ROLE_KEY: &str = "karp.sh/controller-role";

/// What the steps change.
struct Wanted {
    role: &'static str,
    subnets: Vec<String>,
    value: &'static str,
    account: &'static str,
    policy: String,
    cluster: String,
}

impl Wanted {
    fn config(&self, sandbox: &Sandbox, name: &str) -> String {
        let subnets = |ids: &[String]| format!("{ids:?}");
        CONFIG
            .replace("ALL_SUBNETS", &subnets(&sandbox.subnet_ids))
            .replace("SUBNETS", &subnets(&self.subnets))
            .replace("NAME", name)
            .replace("ROLE", self.role)
            .replace("VALUE", self.value)
            .replace("ACCOUNT", self.account)
            .replace("POLICY", &self.policy)
            .replace("CLUSTER", &self.cluster)
    }
}

impl Sandbox {
    /// Edits what the configuration made, as somebody does at AWS's own console.
    async fn edit_behind_the_back(&self, name: &str, stand: &Stand<'_>) {
        let clients = self.clients().await;
        let (iam, eks) = (clients.iam(), clients.eks());
        for address in ["karp_access_entry.this", "karp_fargate_profile.this"] {
            let arn = text(stand, address, "arn");
            eks.untag_resource().resource_arn(&arn).tag_keys("karp.sh/cluster").send().await.unwrap();
        }
        let profile = iam.remove_role_from_instance_profile().instance_profile_name(name);
        profile.role_name(format!("{name}-1")).send().await.unwrap();
        let profile = iam.add_role_to_instance_profile().instance_profile_name(name);
        profile.role_name(format!("{name}-2")).send().await.unwrap();
        let anybody = json!({ "Version": "2012-10-17", "Statement": [{ "Effect": "Allow", "Principal": { "AWS": "*" },
            "Action": "sts:AssumeRole" }] });
        let role = format!("{name}-fargate");
        iam.update_assume_role_policy().role_name(&role).policy_document(anybody.to_string()).send().await.unwrap();
        let standard = stand.attribute("karp_fargate_pod_execution_role.this", "policy_arns");
        let standard = standard[0].as_str().unwrap().to_owned();
        iam.detach_role_policy().role_name(&role).policy_arn(standard).send().await.unwrap();
        let role = format!("{name}-controller");
        let inside = iam.list_role_policies().role_name(&role).send().await.unwrap();
        let other =
            json!({ "Version": "2012-10-17", "Statement": [{ "Effect": "Deny", "Action": "ec2:*", "Resource": "*" }] });
        let call = iam.put_role_policy().role_name(&role).policy_name(&inside.policy_names()[0]);
        call.policy_document(other.to_string()).send().await.unwrap();
        // Another value would be another cluster's, which a plan refuses.
        let tag = Tag::builder().key(format!("karp.test/{name}")).build();
        clients.ec2().delete_tags().resources(&self.subnet_ids[0]).tags(tag).send().await.unwrap();
        let arn = text(stand, "karp_oidc_provider.this", "arn");
        let call = iam.add_client_id_to_open_id_connect_provider().open_id_connect_provider_arn(&arn);
        call.client_id("theirs").send().await.unwrap();
        let call = iam.remove_client_id_from_open_id_connect_provider().open_id_connect_provider_arn(&arn);
        call.client_id("sts.amazonaws.com").send().await.unwrap();
        let association = text(stand, "karp_pod_identity_association.this", "association_id");
        let call = eks.update_pod_identity_association().cluster_name(&self.cluster).association_id(association);
        call.role_arn(text(stand, "karp_node_role.two", "arn")).send().await.unwrap();
        // As an earlier version made it.
        let association = self.association(&text(stand, "karp_controller_role.this", "association_id")).await;
        let call = eks.untag_resource().resource_arn(association.association_arn().unwrap());
        call.tag_keys(ROLE_KEY).send().await.unwrap();
    }

    async fn association(&self, id: &str) -> PodIdentityAssociation {
        let clients = self.clients().await;
        let call = clients.eks().describe_pod_identity_association().cluster_name(&self.cluster);
        call.association_id(id).send().await.unwrap().association.unwrap()
    }

    /// The role that an association gives.
    async fn associated(&self, id: &str) -> String {
        self.association(id).await.role_arn.unwrap()
    }

    /// The role that an association says it was made with.
    async fn made_with(&self, id: &str) -> Option<String> {
        self.association(id).await.tags?.remove(ROLE_KEY)
    }

    /// Which subnets have which value of the tag.
    pub async fn tagged(&self, name: &str) -> Vec<(String, String)> {
        let key = Filter::builder().name("key").values(format!("karp.test/{name}")).build();
        let found = self.clients().await.ec2().describe_tags().filters(key).send().await.unwrap();
        let pair = |tag: &aws_sdk_ec2::types::TagDescription| {
            (tag.resource_id().unwrap().to_owned(), tag.value().unwrap().to_owned())
        };
        let mut all: Vec<_> = found.tags().iter().map(pair).collect();
        all.sort();
        all
    }

    /// Makes another cluster in a region; it takes the first one's role and network. Gives a client of that region's EKS.
    pub async fn another_cluster(&self, name: &str, region: &str) -> aws_sdk_eks::Client {
        let clients = self.clients().await;
        let of = clients.eks().describe_cluster().name(&self.cluster).send().await.unwrap().cluster.unwrap();
        let there = clients.in_region(region).eks().clone();
        let network = VpcConfigRequest::builder().set_subnet_ids(Some(self.subnet_ids.clone())).build();
        let call = there.create_cluster().name(name).role_arn(of.role_arn().unwrap());
        call.resources_vpc_config(network).send().await.unwrap();
        there
    }
}

fn text(stand: &Stand<'_>, address: &str, name: &str) -> String {
    stand.attribute(address, name).as_str().unwrap().to_owned()
}

/// Plans a step, which must do just this, and applies it; nothing is left to do then.
fn step(stand: &Stand<'_>, action: &str, kinds: &[&str]) {
    let run = stand.apply();
    let mut changes = run.changes();
    changes.sort();
    let wanted = kinds.iter().map(|kind| (action.to_owned(), format!("karp_{kind}.this")));
    assert_eq!(changes, wanted.collect::<Vec<_>>(), "{}", run.text);
    stand.assert_empty_plan();
}

#[tokio::test]
async fn what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way() {
    let Some(sandbox) = Sandbox::find("edited") else { return };
    let before = sandbox.what_exists();
    let (name, iam) = (unique("edited"), sandbox.iam().await);
    let mut wanted = Wanted {
        role: "one",
        subnets: sandbox.subnet_ids[..2].to_vec(),
        value: "x",
        account: "one",
        policy: format!("{name}-one"),
        cluster: sandbox.cluster.clone(),
    };
    let stand = sandbox.stand(&wanted.config(&sandbox, &name));
    stand.apply();
    stand.assert_empty_plan();
    let role_of = async || {
        let found = iam.get_instance_profile().instance_profile_name(&name).send().await.unwrap();
        let found = found.instance_profile.unwrap();
        (found.instance_profile_id().to_owned(), found.roles()[0].role_name().to_owned())
    };
    let (profile, _) = role_of().await;
    let pairs = |subnets: &[String], value: &str| {
        let mut pairs: Vec<_> = subnets.iter().map(|id| (id.clone(), value.to_owned())).collect();
        pairs.sort();
        pairs
    };

    sandbox.edit_behind_the_back(&name, &stand).await;
    let edited = [
        "access_entry",
        "controller_role",
        "discovery_tags",
        "fargate_pod_execution_role",
        "fargate_profile",
        "instance_profile",
        "oidc_provider",
        "pod_identity_association",
    ];
    let association = text(&stand, "karp_pod_identity_association.this", "association_id");
    assert_eq!(sandbox.associated(&association).await, text(&stand, "karp_node_role.two", "arn"));
    let own = text(&stand, "karp_controller_role.this", "association_id");
    assert_eq!(sandbox.made_with(&own).await, None);
    step(&stand, "update", &edited);
    assert_eq!(sandbox.associated(&association).await, text(&stand, "karp_node_role.one", "arn"));
    assert_eq!(sandbox.made_with(&own).await, Some(format!("{name}-controller")));
    assert_eq!(sandbox.made_with(&association).await, None, "its role is made elsewhere");
    assert_eq!(role_of().await, (profile.clone(), format!("{name}-1")));
    let role = iam.get_role().role_name(format!("{name}-fargate")).send().await.unwrap().role.unwrap();
    assert!(role.assume_role_policy_document().unwrap().contains("eks-fargate-pods"), "{role:?}");
    let arn = text(&stand, "karp_oidc_provider.this", "arn");
    let found = iam.get_open_id_connect_provider().open_id_connect_provider_arn(&arn).send().await.unwrap();
    assert_eq!(found.client_id_list(), ["theirs", "sts.amazonaws.com"]);
    assert_eq!(sandbox.tagged(&name).await, pairs(&wanted.subnets, "x"));

    // In place.
    wanted = Wanted { role: "two", value: "y", ..wanted };
    stand.write(&wanted.config(&sandbox, &name));
    step(&stand, "update", &["discovery_tags", "instance_profile"]);
    assert_eq!(role_of().await, (profile, format!("{name}-2")));
    assert_eq!(sandbox.tagged(&name).await, pairs(&wanted.subnets, "y"));
    wanted.subnets = sandbox.subnet_ids[1..].to_vec();
    stand.write(&wanted.config(&sandbox, &name));
    step(&stand, "update", &["discovery_tags"]);
    assert_eq!(sandbox.tagged(&name).await, pairs(&wanted.subnets, "y"));

    // What cannot change in place gives way.
    let other = format!("{name}-other");
    let eks = sandbox.another_cluster(&other, &sandbox.region).await;
    wanted = Wanted { account: "two", policy: format!("{name}-two"), cluster: other.clone(), ..wanted };
    stand.write(&wanted.config(&sandbox, &name));
    step(&stand, "replace", &["controller_policy", "oidc_provider", "pod_identity_association"]);
    let left = sandbox.what_exists().to_string();
    assert!(!left.contains(&format!("{name}-one")) && left.contains(&format!("{name}-two")), "{left}");
    assert!(iam.get_open_id_connect_provider().open_id_connect_provider_arn(&arn).send().await.is_err());
    stand.destroy();
    eks.delete_cluster().name(&other).send().await.unwrap();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// The block names no cluster: one that does refuses to end what belongs to another.
#[test]
fn a_teardown_gives_way_for_another_cluster() {
    let Some(sandbox) = Sandbox::with_cluster("teardown_replaced") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: teardown_replaced: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let (one, two) = (unique("one"), unique("two"));
    let provider = |named: Option<&str>| {
        let name = named.map_or_else(|| "cluster_name = null".to_owned(), |name| format!("cluster_name = {name:?}"));
        sandbox.provider(&format!("  {name}\n  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig))
    };
    let config = |provider: String, cluster: &str| {
        format!(
            "{provider}resource \"karp_crds\" \"this\" {{}}\nresource \"karp_teardown\" \"this\" {{\n  cluster_name = {cluster:?}\n  \
             depends_on = [karp_crds.this]\n}}\n"
        )
    };
    let stand = sandbox.stand(&config(provider(None), &one));
    stand.apply();
    stand.assert_empty_plan();
    stand.write(&config(provider(Some(&two)), &two));
    let refused = stand.apply_failing().one_error();
    assert!(refused.contains(&one) && refused.contains("names another cluster"), "{refused}");
    assert_eq!(stand.attribute("karp_teardown.this", "cluster_name"), Value::from(one.as_str()));

    stand.write(&config(provider(None), &two));
    step(&stand, "replace", &["teardown"]);
    assert_eq!(stand.attribute("karp_teardown.this", "cluster_name"), Value::from(two.as_str()));
    stand.destroy();
}
