//! karp in the place of Karpenter's controller: a role and a queue of its own, a `karp_controller` with Karpenter's settings, and the
//! `karp_teardown` that pools and classes name. All of it is new, and role, queue and service account of Karpenter's are left alone, so that its
//! chart can start it again.

use std::collections::BTreeSet;

use super::attributes::Kind;
use super::hcl::{Block, Value};
use super::installed::Installed;
use super::objects::Item;

/// How karp's namespace, Deployment and service account are called where nothing is said.
const USUAL: &str = "karpenter";
/// Its service account where Karpenter's has that name, and stays.
const ACCOUNT: &str = "karp";
/// What pools and classes name, so that a destroy ends them before the controller.
pub const TEARDOWN: &str = "karp_teardown.this.id";
const IMAGE: &str = concat!("ghcr.io/karp/karp:", env!("CARGO_PKG_VERSION"));
/// The variable for what classes do not tell.
const ROLES: &str = "instance_profile_role_arns";
/// What of the parameters of AWS's own the controller may read anyway.
const PUBLIC: &str = "/aws/service/";

/// Writes all of it.
pub fn write(installed: &Installed, items: &[Item]) -> String {
    let mut blocks = vec![Block::new("data", &["karp_cluster", "this"]), parts_of_arn()];
    blocks.extend(asks_for_roles(items).then(|| placeholder(items)));
    blocks.extend(installed.queue.as_deref().map(queue));
    blocks.push(role(installed, items));
    blocks.push(controller(installed));
    blocks.push(teardown());
    let added = blocks.iter().filter(|block| block.kind == "resource").count();
    let mut out = header(added);
    for block in blocks {
        out.push('\n');
        block.write(&mut out);
    }
    out
}

/// Gives the roles that classes name.
pub fn node_roles(items: &[Item]) -> BTreeSet<&str> {
    named(items, "role")
}

/// Gives what has to be done to Karpenter before karp takes its place.
pub fn stop(installed: &Installed) -> (&'static str, String) {
    let (space, name) = installed.deployment.split_once('/').unwrap_or((installed.namespace.as_str(), USUAL));
    if (space, name) == (namespace(installed), USUAL) {
        ("deleted, since karp's has its name", format!("kubectl -n {space} delete deployment {name}"))
    } else {
        ("scaled to 0", format!("kubectl -n {space} scale deployment {name} --replicas=0"))
    }
}

fn header(added: usize) -> String {
    format!(
        "# Written by `karp migrate` {}: karp in the place of Karpenter's controller, for the folder with the node pools.\n\
         # Its share of the plan is: 0 to import, {added} to add, 0 to change, 0 to destroy.\n",
        env!("CARGO_PKG_VERSION")
    )
}

fn bare(expression: &str) -> Value {
    Value::Bare(expression.to_owned())
}

/// Adds a line above a block.
fn note(mut block: Block, line: impl Into<String>) -> Block {
    block.comments.push(line.into());
    block
}

fn parts_of_arn() -> Block {
    let block = note(Block::new("locals", &[]), "arn:PARTITION:eks:REGION:ACCOUNT:cluster/NAME");
    block.set("cluster_arn", bare("split(\":\", data.karp_cluster.this.arn)"))
}

/// Writes an ARN in the cluster's account.
fn arn(service: &str, region: &str, rest: &str) -> Value {
    let quoted = Value::text(rest).inline();
    let rest = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(&quoted);
    Value::Bare(format!("\"arn:${{local.cluster_arn[1]}}:{service}:{region}:${{local.cluster_arn[4]}}:{rest}\""))
}

fn classes(items: &[Item]) -> impl Iterator<Item = &Item> {
    items.iter().filter(|item| item.kind == Kind::Class)
}

fn named<'a>(items: &'a [Item], field: &str) -> BTreeSet<&'a str> {
    classes(items).filter_map(|class| class.spec[field].as_str()).collect()
}

/// Says whether there are nodes whose role no class tells.
fn asks_for_roles(items: &[Item]) -> bool {
    node_roles(items).is_empty() || !named(items, "instanceProfile").is_empty()
}

fn placeholder(items: &[Item]) -> Block {
    let profiles = Vec::from_iter(named(items, "instanceProfile")).join(", ");
    let of = match profiles.as_str() {
        "" => "of the nodes".to_owned(),
        profiles => format!("in the instance profiles {profiles}"),
    };
    let variable = Block::new("variable", &[ROLES])
        .set("type", bare("list(string)"))
        .set("description", Value::text("Roles of nodes that no node class names."));
    note(variable, format!("PLACEHOLDER: give it the ARNs of the roles {of}. What is not there cannot be launched."))
}

fn queue(name: &str) -> Block {
    let block = Block::new("resource", &["karp_interruption_queue", "this"]);
    let block = note(
        block,
        format!("A queue of karp's own: Karpenter's, {name}, stays as it is for as long as what made it keeps it."),
    );
    note(
        block,
        "To go on with that one, give its name here and import it by its URL: policy, tags and rules are changed then.",
    )
}

fn role(installed: &Installed, items: &[Item]) -> Block {
    let own = installed.role.as_deref().map(|role| format!(", {role},")).unwrap_or_default();
    let block = Block::new("resource", &["karp_controller_role", "this"]);
    let mut block = note(block, format!("A role of karp's own: Karpenter's{own} stays as it is."));
    if installed.uses_irsa() {
        block = block.set("oidc_provider_arn", bare("data.karp_cluster.this.oidc_provider_arn"));
    } else {
        block = note(block, "By EKS Pod Identity, since no service account was seen that names Karpenter's role.");
        block = block.set("auth", Value::text("pod_identity"));
    }
    let roles: Vec<&str> = node_roles(items).into_iter().collect();
    if !roles.is_empty() {
        let roles = roles.join(", ");
        block = note(
            block,
            format!(
                "Nodes go on with {roles}: what made that, and its access entry or line in aws-auth, has to keep it."
            ),
        );
        block = note(block, "Where such a role has a path, write it between `role/` and the name.");
    }
    block = subject(block, installed).set("node_role_arns", node_role_arns(items));
    if installed.queue.is_some() {
        block = block.set("interruption_queue_arn", bare("karp_interruption_queue.this.arn"));
    }
    let parameters = parameters(items);
    if parameters.is_empty() { block } else { block.set("ami_ssm_parameter_arns", Value::List(parameters)) }
}

fn node_role_arns(items: &[Item]) -> Value {
    let of = |role: &str| arn("iam", "", &format!("role/{role}"));
    let mut all: Vec<Value> = node_roles(items).into_iter().map(of).collect();
    if all.is_empty() {
        return Value::Bare(format!("var.{ROLES}"));
    }
    if !asks_for_roles(items) {
        return Value::List(all);
    }
    all.push(Value::Bare(format!("var.{ROLES}")));
    Value::Call("flatten", Box::new(Value::List(all)))
}

/// Gives the parameters of the user's own that classes name images by.
fn parameters(items: &[Item]) -> Vec<Value> {
    let terms = classes(items).filter_map(|class| class.spec["amiSelectorTerms"].as_array()).flatten();
    let named: BTreeSet<&str> = terms.filter_map(|term| term["ssmParameter"].as_str()).collect();
    let own = named.into_iter().filter(|name| {
        let path = name.split_once(":parameter").map_or(*name, |(_, path)| path);
        !path.starts_with(PUBLIC)
    });
    let parameter = |name: &str| {
        let path = name.strip_prefix('/').unwrap_or(name);
        arn("ssm", "${local.cluster_arn[3]}", &format!("parameter/{path}"))
    };
    own.map(|name| if name.starts_with("arn:") { Value::text(name) } else { parameter(name) }).collect()
}

/// Where karp runs: on Fargate in Karpenter's namespace, which a profile selects.
fn namespace(installed: &Installed) -> &str {
    if installed.on_fargate { &installed.namespace } else { USUAL }
}

/// Says who the controller is, where that is not said by default.
fn subject(mut block: Block, installed: &Installed) -> Block {
    let namespace = namespace(installed);
    if namespace != USUAL {
        block = block.set("namespace", Value::text(namespace));
    }
    // Karpenter's account keeps its role, and its association of EKS Pod Identity.
    if (installed.namespace.as_str(), installed.account.as_str()) == (namespace, USUAL) {
        block = block.set("service_account", Value::text(ACCOUNT));
    }
    block
}

fn controller(installed: &Installed) -> Block {
    let (how, command) = stop(installed);
    let block = Block::new("resource", &["karp_controller", "this"]).set("image", Value::text(IMAGE));
    let block = note(block, format!("Apply it once Karpenter's Deployment is {how}: {command}"));
    let block = note(
        block,
        "Nodes run on meanwhile. What its chart made under the names of karp's objects, such as the ClusterRole karpenter,",
    );
    let block = note(
        block,
        "is taken over with force_conflicts = true alone. Affinity, topology spread, priority class, budget, ServiceMonitor,",
    );
    let block = note(block, "volumes and what else its values say of the pods is not looked at.");
    let block = note(
        block,
        "Karpenter must not be taken away by `helm uninstall` then: it deletes by name, also the ClusterRoles that are karp's by now, without",
    );
    let mut block = note(
        block,
        "which karp does nothing. docs/guides/moving-to-karp.md says what to delete in its place (step 5).",
    );
    block = subject(block, installed);
    if installed.uses_irsa() {
        block = block.set("controller_role_arn", bare("karp_controller_role.this.arn"));
    }
    if installed.queue.is_some() {
        block = block.set("interruption_queue", bare("karp_interruption_queue.this.name"));
    }
    if !installed.on_fargate {
        block = note(
            block,
            "No pod of Karpenter's was seen on Fargate: with on_fargate = false karp keeps off nodes that it made.",
        );
        block = block.set("on_fargate", bare("false"));
    }
    let mut settings = Vec::new();
    for (attribute, value) in &installed.settings {
        match attribute.strip_prefix("settings.") {
            Some(name) => settings.push((name.to_owned(), value.clone())),
            None => block = block.set(attribute, value.clone()),
        }
    }
    if !settings.is_empty() {
        block = block.set("settings", Value::Object(settings));
    }
    if installed.uses_irsa() {
        return block;
    }
    block.set("depends_on", Value::List(vec![bare("karp_controller_role.this")]))
}

fn teardown() -> Block {
    let block = Block::new("resource", &["karp_teardown", "this"]);
    let block = note(
        block,
        "Destroyed after the node pools and classes, which name it, and before karp_controller: it ends what is left of their nodes, also",
    );
    let block = note(
        block,
        "where no controller runs any more. It refuses while there are node pools that this state does not have.",
    );
    block.set("depends_on", Value::List(vec![bare("karp_controller.this")]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value as Json, json};

    use super::*;

    fn class(name: &str, spec: Json) -> Item {
        let (name, was, metadata) = (name.to_owned(), String::new(), BTreeMap::new());
        Item { kind: Kind::Class, name, was, spec, metadata, exists: true, notes: Vec::new() }
    }

    fn installed(namespace: &str) -> Installed {
        Installed {
            deployment: format!("{namespace}/karpenter"),
            namespace: namespace.to_owned(),
            account: USUAL.to_owned(),
            ..Installed::default()
        }
    }

    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn karpenters_own_account_is_left_its_role() {
        let beside = write(&installed("kube-system"), &[class("a", json!({ "role": "nodes" }))]);
        has(&beside, &["auth           = \"pod_identity\"", "depends_on = [karp_controller_role.this]", "3 to add"]);
        has(&beside, &["scaled to 0: kubectl -n kube-system scale deployment karpenter --replicas=0"]);
        assert!(!beside.contains("namespace =") && !beside.contains("service_account ="), "{beside}");
        assert!(!beside.contains("controller_role_arn") && !beside.contains("interruption_queue"), "{beside}");
        let there = write(&installed("karpenter"), &[]);
        assert_eq!(there.matches("service_account").count(), 2, "{there}");
        has(&there, &["deleted, since karp's has its name: kubectl -n karpenter delete deployment karpenter"]);
    }

    #[test]
    fn the_nodes_end_before_their_controller() {
        let written = write(&installed("kube-system"), &[]);
        let (address, attribute) = TEARDOWN.rsplit_once('.').expect("an attribute");
        let block =
            format!("resource \"{}\" {{\n  depends_on = [karp_controller.this]\n}}\n", address.replace('.', "\" \""));
        assert_eq!(attribute, "id");
        has(&written, &[block.as_str()]);
    }

    #[test]
    fn on_fargate_it_runs_where_karpenter_does() {
        let written = write(&Installed { on_fargate: true, ..installed("infra") }, &[]);
        assert_eq!(written.matches("= \"infra\"").count(), 2, "{written}");
        assert_eq!(written.matches("= \"karp\"").count(), 2, "{written}");
        has(&written, &["oidc_provider_arn = data.karp_cluster.this.oidc_provider_arn"]);
        assert!(!written.contains("on_fargate"), "{written}");
    }

    #[test]
    fn roles_of_instance_profiles_are_asked_for() {
        let one = class("a", json!({ "role": "nodes" }));
        let known = write(&installed("kube-system"), std::slice::from_ref(&one));
        let arn = "\"arn:${local.cluster_arn[1]}:iam::${local.cluster_arn[4]}:role/nodes\"";
        has(&known, &[format!("[{arn}]").as_str()]);
        assert!(!known.contains("PLACEHOLDER"), "{known}");
        let both = write(&installed("kube-system"), &[one, class("b", json!({ "instanceProfile": "profile" }))]);
        has(&both, &["PLACEHOLDER: give it the ARNs of the roles in the instance profiles profile.", "flatten([", arn]);
        let none = write(&installed("kube-system"), &[]);
        has(&none, &["node_role_arns = var.instance_profile_role_arns", "the roles of the nodes."]);
    }

    #[test]
    fn parameters_of_the_users_own_may_be_read() {
        let term = |name: &str| json!({ "ssmParameter": name });
        let terms = ["/aws/service/eks/x", "/images/${a}", "images", "arn:aws:ssm:eu-west-1:111122223333:parameter/b"];
        let found = parameters(&[class("a", json!({ "amiSelectorTerms": terms.map(term) }))]);
        let found: Vec<String> = found.iter().map(Value::inline).collect();
        let own = "arn:${local.cluster_arn[1]}:ssm:${local.cluster_arn[3]}:${local.cluster_arn[4]}:parameter";
        assert_eq!(
            found,
            [
                format!("\"{own}/images/$${{a}}\""),
                "\"arn:aws:ssm:eu-west-1:111122223333:parameter/b\"".to_owned(),
                format!("\"{own}/images\""),
            ]
        );
    }
}
