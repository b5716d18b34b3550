//! What five articles on Karpenter do: their manifests (`shared/domain/tests/articles`) through the functions and resources, and the guide
//! that tells what replaces their commands, whose names are held to the schemas.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use tfplugin::schema::Kind;
use tfplugin::testing::Core;
use tfplugin::{Attribute, Provider as _, Value};

use crate::provider::Karp;

const GUIDE: &str = include_str!("../../../docs/guides/from-a-tutorial.md");
const POOL: &str = "node_pool_from_provisioner";
const CLASS: &str = "node_class_from_template";

/// What the guide's first column must have, by the articles that do it, with names that the second column must tell.
const STEPS: [(&str, &str, &[&str]); 64] = [
    ("002 004", "export CLUSTER_NAME", &["cluster_name"]),
    ("004", "export AWS_DEFAULT_REGION", &["region"]),
    ("004", "aws sts get-caller-identity", &[]),
    ("004", "aws configure", &[]),
    ("000", "terraform plan", &[]),
    ("000", "terraform apply", &[]),
    ("002 004", "eksctl create cluster", &["karp_fargate_profile"]),
    ("002 004", "kind: ClusterConfig", &["cluster_name"]),
    ("002 004", "withOIDC: true", &["karp_oidc_provider"]),
    ("000 002 003 004", "karpenter.sh/discovery", &["karp_discovery_tags.resource_ids"]),
    ("000", "terraform-aws-modules/vpc/aws", &[]),
    ("000", "terraform-aws-modules/security-group", &["karp_node_class.security_group_selector_terms"]),
    ("002 004", "aws eks describe-cluster", &["data.karp_cluster.endpoint"]),
    ("002 004", "curl` of a CloudFormation template", &[]),
    ("002 004", "aws cloudformation deploy", &["karp_node_role", "karp_instance_profile", "karp_controller_role"]),
    ("002 004", "eksctl create iamidentitymapping", &["karp_access_entry", "karp_aws_auth_entry"]),
    ("002 004", "eksctl create iamserviceaccount", &["karp_controller_role.service_account"]),
    ("002", "aws iam create-service-linked-role", &["karp_spot_service_linked_role"]),
    ("003", "aws_iam_role` of the controller", &["karp_controller_role"]),
    ("003", "aws_iam_policy_document` of the controller", &["karp_controller_role.policy_json"]),
    ("003", "aws_eks_fargate_profile", &["karp_fargate_profile.selectors"]),
    ("003", "aws_iam_role` of Fargate", &["karp_fargate_pod_execution_role"]),
    ("003", "aws_iam_instance_profile", &["karp_instance_profile", "karp_node_class.role"]),
    ("003", "aws_iam_role` of the nodes", &["karp_node_role"]),
    ("003", "aws_iam_role_policy_attachment` of the nodes", &["karp_node_role.attach_ssm_policy"]),
    ("003", "aws_sqs_queue", &["karp_interruption_queue.message_retention_seconds"]),
    ("003", "aws_sqs_queue_policy", &["karp_interruption_queue.policy", "karp_interruption_queue.events"]),
    ("002 004", "helm repo add", &[]),
    ("002 004", "helm repo update", &[]),
    ("002 004", "helm upgrade --install karpenter", &["karp_crds", "karp_controller"]),
    ("002 004", "--version", &["karp_controller.image"]),
    ("002 004", "--namespace", &["karp_controller.namespace"]),
    ("002 004", "--create-namespace", &["karp_controller.create_namespace"]),
    ("002", "--wait", &["karp_controller.wait"]),
    ("002 004", "--set serviceAccount.create", &["karp_controller.service_account"]),
    ("002 004", "--set controller.clusterName", &["karp_controller.cluster_name"]),
    ("002 004", "--set controller.clusterEndpoint", &["karp_controller.cluster_endpoint"]),
    ("003 004", "--set aws.defaultInstanceProfile", &["karp_node_class.instance_profile"]),
    ("003", "karpenter-global-settings", &["karp_controller.settings", "karp_controller.interruption_queue"]),
    ("000 002 003 004", "kind: Provisioner", &["karp_node_pool", "provider::karp::node_pool_from_provisioner"]),
    ("002 004", "provider:` in a Provisioner", &["karp_node_class", "provider::karp::node_class_from_template"]),
    ("003", "kind: AWSNodeTemplate", &["karp_node_class", "provider::karp::node_class_from_template"]),
    ("001", "kind: NodePool", &["karp_node_pool"]),
    ("001", "kind: EC2NodeClass", &["karp_node_class"]),
    ("002 004", "ttlSecondsAfterEmpty", &["karp_node_pool.disruption.consolidate_after"]),
    ("003", "ttlSecondsUntilExpired", &["karp_node_pool.template.expire_after"]),
    ("000", "karpenter.sh/provisioner-name", &["karpenter.sh/nodepool", "karp migrate --patch"]),
    ("002 004", "kubectl apply` of a Deployment", &[]),
    ("002 004", "kubectl scale deployment inflate", &[]),
    ("004", "kubectl delete deployment inflate", &[]),
    ("002", "kubectl get pod", &[]),
    ("002 004", "kubectl get pods -l karpenter=controller", &[]),
    ("002", "kubectl get nodes", &[]),
    ("002", "kubectl get all -n karpenter", &[]),
    ("002", "kubectl describe pod", &["karp explain pod"]),
    ("002 004", "kubectl logs -l karpenter=controller", &[]),
    ("002", "aws ec2 describe-spot-instance-requests", &["data.karp_nodes.nodes.price"]),
    ("003", "eks-node-viewer", &[]),
    ("002", "helm uninstall karpenter", &[]),
    ("002", "eksctl delete iamserviceaccount", &[]),
    ("002", "aws cloudformation delete-stack", &[]),
    ("002", "aws ec2 describe-launch-templates", &["data.karp_orphans.launch_templates"]),
    ("002", "aws ec2 delete-launch-template", &["karp_teardown.sweep", "data.karp_orphans.launch_templates"]),
    ("002", "eksctl delete cluster", &[]),
];

/// The rows of the guide's tables: both cells.
fn rows() -> Vec<(&'static str, &'static str)> {
    let cells = |line: &'static str| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ");
    GUIDE.lines().filter_map(cells).filter(|(step, _)| *step != "in the article").collect()
}

/// What stands in backticks.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn each_step_of_the_articles_has_a_row_and_each_row_is_a_step() {
    let rows = rows();
    // What follows a name in the cell is written behind its closing backtick.
    let cell = |step: &str| if step.contains('`') { format!("`{step}") } else { format!("`{step}`") };
    let steps: Vec<(String, &[&str])> = STEPS.iter().map(|(_, step, told)| (cell(step), *told)).collect();
    for (step, told) in &steps {
        let Some((_, answer)) = rows.iter().find(|(cell, _)| cell == step) else {
            panic!("the guide has no row {step}")
        };
        for name in *told {
            assert!(names(answer).any(|one| one == *name), "{step}: `{name}` is not told");
        }
    }
    for (cell, _) in &rows {
        assert!(steps.iter().any(|(step, _)| step == cell), "{cell} is no step of an article");
    }
    for article in ["000", "001", "002", "003", "004"] {
        assert!(STEPS.iter().any(|(articles, ..)| articles.contains(article)), "{article}");
    }
}

/// The programs that the articles call.
const PROGRAMS: [&str; 6] = ["aws", "curl", "eksctl", "helm", "kubectl", "terraform"];

/// The name by which articles call kubectl, once they have said so.
const ALIAS: &str = "k";

/// Cuts a line of shell where a command may begin: after a pipe, a semicolon or `&&`, and in `$(…)` and after it.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    let mut parts = line.split("$(");
    let before = parts.next();
    let pieces = before.into_iter().chain(parts.flat_map(|part| part.splitn(2, ')')));
    pieces.flat_map(|part| part.split("&&")).flat_map(|part| part.split(['|', ';']))
}

/// What a line of an article has the reader do, in the words of [`STEPS`]: commands by program and verbs, and what stands in manifests and HCL.
fn told(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for piece in pieces(line) {
        let piece = piece.trim().trim_start_matches("> ").trim_start_matches("xargs -I{} ");
        let mut words = piece.split_whitespace().map(|word| if word == ALIAS { "kubectl" } else { word });
        let Some(program) = words.next().filter(|word| PROGRAMS.contains(word)) else { continue };
        let is_verb = |word: &&str| {
            word.starts_with(|c: char| c.is_ascii_lowercase())
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        let verbs: Vec<&str> = words.take_while(is_verb).collect();
        found.push([&[program], &verbs[..]].concat().join(" "));
    }
    let after = |mark: &str, ends: &[char]| {
        let rest = line.split(mark).nth(1)?;
        rest.split(ends).next().filter(|name| !name.is_empty()).map(str::to_owned)
    };
    let set = after("--set ", &['=']).map(|name| format!("--set {name}"));
    let exported = after("export ", &['=']).map(|name| format!("export {name}"));
    let kind = after("kind: ", &[' ']).filter(|kind| kind != "Deployment").map(|kind| format!("kind: {kind}"));
    let hcl = ["resource \"", "data \""].into_iter().filter_map(|mark| after(mark, &['"']));
    let older =
        ["ttlSecondsAfterEmpty", "ttlSecondsUntilExpired", "karpenter.sh/provisioner-name", "karpenter.sh/discovery"];
    let older = older.into_iter().filter(|name| line.contains(name)).map(str::to_owned);
    found.extend(set.into_iter().chain(exported).chain(kind).chain(hcl).chain(older));
    found
}

/// Says whether a step has what an article tells: the one begins with the words of the other.
fn covers(step: &str, told: &str) -> bool {
    let name = step.split('`').next().unwrap_or(step).trim_end_matches(':');
    let (mut ours, mut theirs) = (name.split(' '), told.split(' '));
    std::iter::from_fn(|| Some((ours.next()?, theirs.next()?))).all(|(ours, theirs)| ours == theirs)
}

/// Where the articles are beside the repository, nothing that they have the reader do is without a step.
#[test]
fn what_the_articles_have_the_reader_do_are_steps() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/seeds");
    let Ok(files) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: the articles are not beside the repository");
        return;
    };
    let (mut found, mut missing) = (0, Vec::new());
    for file in files.flatten() {
        let name = file.file_name().into_string().expect("a name");
        let text = std::fs::read_to_string(file.path()).expect("an article");
        for (at, line) in text.lines().enumerate() {
            for told in told(line) {
                found += 1;
                if !STEPS.iter().any(|(articles, step, _)| articles.contains(&name[..3]) && covers(step, &told)) {
                    missing.push(format!("{name}, line {}: {told}", at + 1));
                }
            }
        }
    }
    assert!(missing.is_empty(), "these are no steps: {missing:#?}");
    assert!(found > 60, "{found} steps");
}

#[test]
fn what_a_line_tells_is_read() {
    assert_eq!(
        told("> aws ec2 describe-x --a b | xargs -I{} aws ec2 delete-x"),
        ["aws ec2 describe-x", "aws ec2 delete-x"]
    );
    assert_eq!(told("  --set controller.name=$(aws eks x)"), ["aws eks x", "--set controller.name"]);
    assert_eq!(
        told("> k logs -f $(k get pods -o name) && aws sts x"),
        ["kubectl logs", "kubectl get pods", "aws sts x"]
    );
    assert_eq!(told("&& aws cloudformation deploy \\"), ["aws cloudformation deploy"]);
    assert_eq!(told("ACCOUNT=$(aws sts get-caller-identity --query Account)"), ["aws sts get-caller-identity"]);
    assert_eq!(told("TEMPOUT=$(mktemp); kubectl get nodes"), ["kubectl get nodes"]);
    assert_eq!(told("Helm and kubectl are needed"), Vec::<String>::new());
    assert!(covers("kubectl apply` of a Deployment", "kubectl apply") && covers("aws configure", "aws configure"));
    assert!(!covers("kubectl get nodes", "kubectl get pods") && !covers("aws configure", "aws sts"));
}

/// Finds an attribute by its path.
pub(super) fn has(attributes: &BTreeMap<String, Attribute>, path: &str) -> bool {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    match (attributes.get(name).map(|found| &found.kind), rest) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(Kind::Nested(_, inner)), Some(rest)) => has(inner, rest),
        (Some(Kind::Value(_)), Some(_)) => false,
    }
}

#[test]
fn what_the_guide_names_is_there() {
    let karp = Karp::default();
    let resources = karp.resources().into_iter().map(|one| (one.type_name().to_owned(), one.schema()));
    let sources = karp.data_sources().into_iter().map(|one| (format!("data.{}", one.type_name()), one.schema()));
    let schemas: BTreeMap<String, _> = resources.chain(sources).collect();
    let functions: Vec<&str> = karp.functions().iter().map(|one| one.name()).collect();
    let mut found = 0;
    for (step, answer) in rows() {
        for name in names(answer) {
            let (kind, path) = match name.strip_prefix("data.") {
                Some(rest) => {
                    let (kind, path) = rest.split_once('.').map_or((rest, None), |(kind, path)| (kind, Some(path)));
                    (format!("data.{kind}"), path)
                }
                None => {
                    name.split_once('.').map_or((name.to_owned(), None), |(kind, path)| (kind.to_owned(), Some(path)))
                }
            };
            if let Some(function) = name.strip_prefix("provider::karp::") {
                assert!(functions.contains(&function), "{step}: {name} is no function");
            } else if kind.starts_with("karp_") || kind.starts_with("data.") {
                let Some(schema) = schemas.get(&kind) else { panic!("{step}: there is no {kind}") };
                assert!(path.is_none_or(|path| has(&schema.attributes, path)), "{step}: {kind} has no {path:?}");
            } else {
                continue;
            }
            found += 1;
        }
    }
    assert!(found > 60, "{found} names");
}

/// Reads the manifests of an article.
fn manifests(article: &str) -> Vec<Json> {
    let path = format!("{}/../shared/domain/tests/articles/{article}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("an article");
    serde_saphyr::from_multiple(&text).expect("manifests")
}

fn of_kind(article: &str, kind: &str) -> Vec<Json> {
    manifests(article).into_iter().filter(|manifest| manifest["kind"] == kind).collect()
}

/// Converts a manifest.
async fn converted(function: &str, manifest: &Json, inputs: &Json) -> Result<Value, String> {
    let mut arguments = vec![Value::from(manifest.clone())];
    if function == CLASS {
        arguments.push(Value::from(inputs.clone()));
    }
    Core::new(Karp::default()).call(function, &arguments).await.map_err(|error| error.text)
}

/// Converts a manifest; the resource must take what comes of it.
async fn taken(function: &str, manifest: &Json, inputs: &Json) -> Value {
    let value = converted(function, manifest, inputs).await.unwrap_or_else(|error| panic!("{manifest}: {error}"));
    let mut arguments = value.as_map().expect("an object").clone();
    arguments.remove("notes");
    let resource = if function == POOL { "karp_node_pool" } else { "karp_node_class" };
    let found = Core::new(Karp::default()).validate(resource, &Value::Map(arguments)).await;
    assert!(found.is_empty(), "{manifest}: {found}");
    value
}

/// Answers at which paths a manifest is refused, and the whole text.
async fn refused(function: &str, manifest: &Json) -> (Vec<String>, String) {
    let text = converted(function, manifest, &Json::Null).await.expect_err("it is refused");
    let paths = text.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect();
    (paths, text)
}

#[tokio::test]
async fn manifests_of_older_apis_are_taken() {
    let profile = json!({ "instance_profile": "KarpenterNodeInstanceProfile-prod" });
    // The article, its pools, its classes, and what the settings of the chart have to say besides.
    let cases: [(&str, &[&str], &str, Json); 4] = [
        ("000", &["default", "on-demand"], "", Json::Null),
        ("002", &["default"], "Provisioner", Json::Null),
        ("003", &["default"], "AWSNodeTemplate", profile.clone()),
        ("004", &["default"], "Provisioner", profile),
    ];
    for (article, pools, class, inputs) in cases {
        let mut names = Vec::new();
        for manifest in of_kind(article, "Provisioner") {
            let pool = taken(POOL, &manifest, &Json::Null).await;
            let reference = pool.get("template").get("node_class_ref").get("name").as_str().map(str::to_owned);
            assert_eq!(reference.as_deref(), Some("default"), "{article}");
            names.push(pool.get("name").as_str().expect("a name").to_owned());
        }
        assert_eq!(names, pools, "{article}");
        for manifest in of_kind(article, class) {
            let class = taken(CLASS, &manifest, &inputs).await;
            assert_eq!(class.get("name").as_str(), Some("default"), "{article}");
            let profile = class.get("instance_profile").as_str();
            assert_eq!(profile, Some("KarpenterNodeInstanceProfile-prod"), "{article}");
        }
    }
}

#[tokio::test]
async fn a_profile_that_only_the_chart_knew_is_asked_for() {
    for (article, kind, path) in
        [("003", "AWSNodeTemplate", "spec.instanceProfile"), ("004", "Provisioner", "spec.provider.instanceProfile")]
    {
        for manifest in of_kind(article, kind) {
            let (paths, text) = refused(CLASS, &manifest).await;
            assert_eq!(paths, [path], "{article}: {text}");
            assert!(text.contains("aws.defaultInstanceProfile"), "{text}");
        }
    }
}

#[tokio::test]
async fn the_manifest_that_is_itself_invalid_is_refused_at_each_field_with_what_to_write() {
    let [mut pool, mut class] = <[Json; 2]>::try_from(manifests("001")).expect("a pool and a class");
    let (paths, text) = refused(POOL, &pool).await;
    let fields =
        ["spec.disruption.consolidateAfter", "spec.disruption.consolidationPolicy", "spec.template.spec.expireAfter"];
    assert_eq!(paths, fields, "{text}");
    assert_eq!(text.matches("stands between alternatives: write one of them").count(), 3, "{text}");
    let (paths, text) = refused(CLASS, &class).await;
    assert_eq!(paths, ["spec", "spec.amiSelectorTerms[0].alias"], "{text}");
    assert!(text.contains("exactly one of role and instanceProfile") && text.contains("one of al2, al2023"), "{text}");

    // With what was told, each is taken.
    pool["spec"]["disruption"] = json!({ "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "1m" });
    pool["spec"]["template"]["spec"]["expireAfter"] = json!("720h");
    class["spec"].as_object_mut().expect("fields").remove("instanceProfile");
    class["spec"]["amiSelectorTerms"][0]["alias"] = json!("al2023@latest");
    let pool = taken(POOL, &pool, &Json::Null).await;
    assert_eq!(pool.get("disruption").get("consolidate_after").as_str(), Some("1m"));
    let class = taken(CLASS, &class, &Json::Null).await;
    assert_eq!(class.get("kubelet").get("max_pods"), &Value::from(110));
}

/// Answers at which paths the notes of a conversion speak of a placeholder.
fn unfilled(value: &Value) -> Vec<&str> {
    let notes = value.get("notes").as_list().iter().filter_map(Value::as_str);
    notes.filter(|note| note.contains("is a placeholder")).filter_map(|note| Some(note.split_once(": ")?.0)).collect()
}

/// As the articles print them, for a shell or the reader to fill in.
#[tokio::test]
async fn placeholders_that_nobody_filled_in_are_told_at_their_paths() {
    let (profile, discovery) = ("KarpenterNodeInstanceProfile-${CLUSTER_NAME}", "karpenter.sh/discovery");
    let template = json!({ "apiVersion": "karpenter.k8s.aws/v1alpha1", "kind": "AWSNodeTemplate", "metadata": { "name": "default" },
        "spec": {
            "securityGroupSelector": { discovery: "<CLUSTER_NAME>" },
            "subnetSelector": { discovery: "<CLUSTER_NAME>" },
            "tags": { discovery: "<CLUSTER_NAME>" },
        } });
    let class = converted(CLASS, &template, &json!({ "instance_profile": profile })).await.expect("a class");
    let of_terms = ["subnetSelectorTerms", "securityGroupSelectorTerms"]
        .map(|terms| format!("spec.{terms}[0].tags[karpenter.sh/discovery]"));
    let paths = ["spec.instanceProfile", "spec.tags[karpenter.sh/discovery]", &of_terms[0], &of_terms[1]];
    assert_eq!(unfilled(&class), paths);
    // A plan says it at the arguments, too.
    let mut arguments = class.as_map().expect("an object").clone();
    arguments.remove("notes");
    let told = Core::new(Karp::default()).validate("karp_node_class", &Value::Map(arguments)).await.to_string();
    assert_eq!(told.matches("is a placeholder").count(), 4, "{told}");
    assert!(told.contains("tags[\"karpenter.sh/discovery\"]: <CLUSTER_NAME> is a placeholder"), "{told}");

    let inline = json!({ "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": { "name": "${CLUSTER_NAME}" },
        "spec": { "provider": {
            "subnetSelector": { discovery: "${CLUSTER_NAME}" },
            "securityGroupSelector": { discovery: "${CLUSTER_NAME}" },
            "instanceProfile": profile,
        } } });
    let class = converted(CLASS, &inline, &Json::Null).await.expect("a class");
    assert_eq!(unfilled(&class), ["metadata.name", "spec.instanceProfile", &of_terms[0], &of_terms[1]]);
    let pool = converted(POOL, &inline, &Json::Null).await.expect("a pool");
    assert_eq!(unfilled(&pool), ["metadata.name", "spec.template.spec.nodeClassRef.name"]);

    let [_, mut printed] = <[Json; 2]>::try_from(manifests("001")).expect("a pool and a class");
    printed["spec"].as_object_mut().expect("fields").remove("instanceProfile");
    printed["spec"]["amiSelectorTerms"][0]["alias"] = json!("al2023@latest");
    printed["spec"]["role"] = json!("KarpenterNodeRole-${CLUSTER_NAME}");
    let class = converted(CLASS, &printed, &Json::Null).await.expect("a class");
    assert_eq!(unfilled(&class), ["spec.role"]);
}
