//! What is looked up: the images of a node class, what nobody accounts for any more, and the way into the cluster, which is never kept.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::life::unique;
use crate::stand::{Sandbox, Stand};
use crate::teardown::Kubectl;

fn ids(stand: &Stand<'_>, address: &str, name: &str) -> Vec<String> {
    let value = stand.attribute(address, name);
    value.as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_cluster_is_told_as_eks_describes_it() {
    let Some(sandbox) = Sandbox::find("cluster") else { return };
    let before = sandbox.what_exists();
    let stand =
        sandbox.stand("PROVIDER\ndata \"karp_cluster\" \"it\" {}\nresource \"karp_oidc_provider\" \"this\" {}\n");
    stand.apply();
    stand.assert_empty_plan();
    let told = |name: &str| stand.attribute("karp_cluster.it", name);
    let eks = sandbox.clients().await.eks().clone();
    let live = eks.describe_cluster().name(&sandbox.cluster).send().await.unwrap().cluster.unwrap();
    let (vpc, services) = (live.resources_vpc_config().unwrap(), live.kubernetes_network_config().unwrap());
    let issuer = live.identity().and_then(|identity| identity.oidc()).and_then(|oidc| oidc.issuer());
    let mode = live.access_config().and_then(|access| access.authentication_mode());
    for (name, actual) in [
        ("name", live.name()),
        ("arn", live.arn()),
        ("status", live.status().map(|status| status.as_str())),
        ("version", live.version()),
        ("endpoint", live.endpoint()),
        ("oidc_issuer", issuer),
        ("authentication_mode", mode.map(|mode| mode.as_str())),
        ("ip_family", services.ip_family().map(|family| family.as_str())),
        ("service_cidr", services.service_ipv4_cidr()),
        ("vpc_id", vpc.vpc_id()),
        ("cluster_security_group_id", vpc.cluster_security_group_id()),
    ] {
        let actual = actual.unwrap_or_else(|| panic!("EKS tells no {name}"));
        assert_eq!(told(name), actual, "{name}");
    }
    assert_eq!(told("subnet_ids"), json!(vpc.subnet_ids()));
    assert_eq!(told("security_group_ids"), json!(vpc.security_group_ids()));
    let authority = live.certificate_authority().and_then(|authority| authority.data()).unwrap();
    let authority = base64::engine::general_purpose::STANDARD.decode(authority).unwrap();
    assert_eq!(told("cluster_ca_certificate"), String::from_utf8(authority).unwrap());
    assert_eq!(told("oidc_provider_arn"), stand.attribute("karp_oidc_provider.this", "arn"));
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn images_are_found_by_alias_and_by_terms() {
    let Some(sandbox) = Sandbox::find("amis") else { return };
    let alias = "data \"karp_amis\" \"alias\" {\n  ami_selector_terms = [{ alias = \"al2023@latest\" }]\n}\n";
    let stand = sandbox.stand(&format!("PROVIDER\n{alias}"));
    stand.apply();
    let version = sandbox.door("GET", "/_karp/seed", "")["kubernetes_version"].as_str().map(str::to_owned);
    let amis = stand.attribute("karp_amis.alias", "amis");
    let amis = amis.as_array().unwrap();
    let of = |arch: &str, variant: &str| {
        let mut found = amis.iter().filter(|ami| ami["architecture"] == arch && ami["variant"] == variant);
        let one = found.next().unwrap_or_else(|| panic!("no {arch} {variant} in {amis:?}"));
        assert!(found.next().is_none(), "two of {arch} {variant}");
        one.clone()
    };
    let (standard, arm) = (of("amd64", "standard"), of("arm64", "standard"));
    of("amd64", "nvidia");
    assert_eq!(ids(&stand, "karp_amis.alias", "ids").len(), amis.len());

    // What EC2 says of it.
    let ec2 = sandbox.clients().await.ec2().clone();
    for (ami, architecture) in [(&standard, "x86_64"), (&arm, "arm64")] {
        let id = ami["id"].as_str().unwrap();
        let answer = ec2.describe_images().image_ids(id).send().await.unwrap();
        let image = &answer.images()[0];
        assert_eq!(image.name(), ami["name"].as_str());
        assert_eq!(image.architecture().unwrap().as_str(), architecture);
        if let Some(version) = &version {
            assert!(image.name().unwrap().contains(version.as_str()), "{image:?} is not for {version}");
        }
    }

    let (id, name) = (standard["id"].as_str().unwrap(), arm["name"].as_str().unwrap());
    let terms = format!(
        "data \"karp_amis\" \"terms\" {{\n  ami_selector_terms = [{{ id = {id:?} }}, {{ name = {name:?}, owner = \"amazon\" }}]\n}}\n\
         data \"karp_amis\" \"none\" {{\n  ami_selector_terms = [{{ tags = {{ \"karp.test/none\" = \"here\" }} }}]\n}}\n"
    );
    stand.write(&format!("PROVIDER\n{alias}{terms}"));
    stand.apply();
    let mut found = ids(&stand, "karp_amis.terms", "ids");
    found.sort();
    let mut expected = vec![id.to_owned(), arm["id"].as_str().unwrap().to_owned()];
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(ids(&stand, "karp_amis.none", "ids"), Vec::<String>::new());
    stand.assert_empty_plan();

    stand.write(&format!("PROVIDER\n{}", alias.replace("}]\n", "}]\n  kubernetes_version = \"1.3\"\n")));
    let told = stand.plan().one_error();
    assert!(told.contains("1.3"), "{told}");
}

#[tokio::test]
async fn what_nobody_accounts_for_is_told() {
    let Some(sandbox) = Sandbox::with_cluster("orphans") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: orphans: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let cluster = format!("edge-orphans-{}", std::process::id());
    let before = sandbox.what_exists();
    let block = format!("  cluster_name = {cluster:?}\n  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig);
    let rest = "resource \"karp_crds\" \"this\" {}\nresource \"karp_teardown\" \"this\" {\n  drain_timeout = \"5s\"\n  depends_on = [karp_crds.this]\n}\n\
                data \"karp_orphans\" \"it\" {\n  depends_on = [karp_crds.this]\n}\n";
    let stand = sandbox.stand(&(sandbox.provider(&block) + rest));
    stand.apply();
    assert_eq!(stand.attribute("karp_orphans.it", "total"), 0);
    assert_eq!(stand.attribute("karp_orphans.it", "name"), cluster);

    let (instance, zone, interface) = sandbox.leave_behind(&cluster).await;
    stand.apply();
    let count = |kind: &str| ids(&stand, "karp_orphans.it", kind).len();
    assert_eq!(ids(&stand, "karp_orphans.it", "instances"), std::slice::from_ref(&instance));
    for kind in ["network_interfaces", "volumes", "launch_templates", "instance_profiles"] {
        assert_eq!(count(kind), 1, "{kind}: {:?}", stand.attribute("karp_orphans.it", kind));
    }
    assert_eq!(stand.attribute("karp_orphans.it", "total"), 5);

    // A NodeClaim that stands for the instance accounts for it, and for nothing else.
    let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "none" });
    kubectl.create(&json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": cluster },
        "spec": { "nodeClassRef": class, "requirements": [] } }));
    kubectl.patch_status(
        "nodeclaim",
        &cluster,
        &json!({ "status": { "providerID": format!("aws:///{zone}/{instance}") } }),
    );
    stand.apply();
    assert_eq!((count("instances"), count("volumes")), (0, 1));
    stand.assert_empty_plan();

    let done = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    assert_eq!(done.code, 0, "{}", done.text);
    let mut after = sandbox.what_exists();
    // The emulator keeps the interface of an instance that has ended; EC2 deletes it.
    after["network_interfaces"].as_array_mut().unwrap().retain(|id| *id != interface);
    assert_eq!(after, before, "something is left");
}

/// The token opens the API server for another provider block, and is in neither plan nor state.
#[test]
fn the_way_into_the_cluster_is_used_and_never_kept() {
    let Some(sandbox) = Sandbox::with_cluster("token") else { return };
    if Kubectl::find().is_none() {
        eprintln!("skipped: token: KARP_TEST_KUBECONFIG is not set");
        return;
    }
    let name = unique("token");
    let aws = sandbox.provider("  alias = \"aws\"");
    let config = format!(
        "{aws}ephemeral \"karp_cluster_token\" \"this\" {{\n  provider = karp.aws\n}}\nprovider \"karp\" {{\n  kubernetes = {{\n    \
         host                   = ephemeral.karp_cluster_token.this.endpoint\n    \
         cluster_ca_certificate = ephemeral.karp_cluster_token.this.cluster_ca_certificate\n    \
         token                  = ephemeral.karp_cluster_token.this.token\n  }}\n}}\nresource \"karp_crds\" \"this\" {{}}\n\
         resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  price_adjustment = \"-30%\"\n  requirements = [{{ key = \
         \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n  depends_on = [karp_crds.this]\n}}\n"
    );
    let stand = sandbox.stand(&config);
    let planned = stand.tofu(&["plan", "-json", "-out=plan"]);
    assert_eq!(planned.code, 0, "{}", planned.text);
    let shown = stand.tofu(&["show", "-json", "plan"]);
    let applied = stand.tofu(&["apply", "-json", "plan"]);
    assert_eq!(applied.code, 0, "{}", applied.text);
    stand.assert_empty_plan();
    assert!(stand.state().contains(&name), "{}", stand.state());
    for (place, text) in [("state", stand.state()), ("plan", shown.text), ("output", planned.text + &applied.text)] {
        assert!(!text.contains("k8s-aws-v1"), "the {place} has the token");
    }
    // Nothing but the token opens the API server here: another one does not.
    stand.write(&config.replace("ephemeral.karp_cluster_token.this.token\n", "\"k8s-aws-v1.bm9uZQ\"\n"));
    let refused: Value = json!(stand.plan().one_error());
    assert!(refused.as_str().unwrap().contains("credentials"), "{refused}");
    stand.write(&config);
    stand.destroy();
}
