//! What `karp migrate --controller` writes takes over a class and a pool and puts karp beside them; with nodes running, one destroy ends all of it.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use kube::{
    Api,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use sandbox::{Sandbox, tofu::Workspace};
use serde_json::{Value, json};

use crate::{Workload, apply, destroy, init, remove};

/// What a cluster has before: definitions, the nodes' identity, tags, and Fargate for the controller.
const SURROUNDINGS: &str = r#"
terraform {
  required_providers {
    karp = { source = "karp/karp" }
  }
}

variable "cluster_name" { type = string }
variable "subnet_ids" { type = set(string) }
variable "security_group_ids" { type = set(string) }

provider "karp" { cluster_name = var.cluster_name }

resource "karp_crds" "this" { keep_on_destroy = false }
resource "karp_oidc_provider" "this" {}
resource "karp_spot_service_linked_role" "this" {}
resource "karp_node_role" "this" { name = "nodes" }
resource "karp_access_entry" "nodes" { principal_arn = karp_node_role.this.arn }
resource "karp_discovery_tags" "this" {
  resource_ids = setunion(var.subnet_ids, var.security_group_ids)
  value        = var.cluster_name
}
resource "karp_fargate_pod_execution_role" "this" {}
resource "karp_fargate_profile" "controller" {
  pod_execution_role_arn = karp_fargate_pod_execution_role.this.arn
  subnet_ids             = var.subnet_ids
  selectors              = [{ namespace = "karpenter" }]
}
"#;

/// Plays it, and destroys what was there before, too.
pub async fn play(sandbox: &Sandbox) -> Result<()> {
    let surroundings = workspace(sandbox, "surroundings")?;
    fs::write(surroundings.folder().join("main.tf"), SURROUNDINGS)?;
    init(&surroundings).await?;
    apply(&surroundings).await?;
    for object in objects(&sandbox.cluster_name) {
        create(sandbox, &object).await?;
    }

    let migrated = workspace(sandbox, "migrated")?;
    migrate(sandbox, &migrated)?;
    init(&migrated).await?;
    let told = apply(&migrated).await?;
    let planned = "Plan: 2 to import, 4 to add, 2 to change, 0 to destroy.";
    ensure!(told.contains(planned), "the plan is not `{planned}`:\n{told}");
    let again = migrated.run(&["plan", "-input=false", "-no-color", "-detailed-exitcode"]).await?;
    again.success().context("the second plan must be empty (exit code 2 means that it shows changes)")?;

    let pods = Workload::default();
    pods.create(&sandbox.client, "migrated").await?;
    pods.run(&sandbox.client, "migrated").await?;
    destroy(&migrated).await?;
    remove(&sandbox.client, "migrated").await?;
    destroy(&surroundings).await.map(drop)
}

/// A class whose instance profile a controller makes, and a pool.
fn objects(cluster: &str) -> [Value; 2] {
    let tagged = json!([{ "tags": { "karpenter.sh/discovery": cluster } }]);
    let class = json!({ "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" }, "spec": {
        "role": "nodes",
        "amiSelectorTerms": [{ "alias": "al2023@latest" }],
        "subnetSelectorTerms": tagged,
        "securityGroupSelectorTerms": tagged,
    } });
    let requirements = json!([
        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
        { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
        { "key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m"] },
    ]);
    let node_class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    let pool = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" }, "spec": {
        "template": { "spec": { "nodeClassRef": node_class, "requirements": requirements } },
        // a number, as kubectl writes what people write without quotes
        "limits": { "cpu": 100 },
    } });
    [class, pool]
}

/// Karpenter's controller as its chart makes it, on Fargate. It is only read about, since its image cannot run here.
fn karpenter(cluster: &str) -> [Value; 2] {
    let env =
        json!([{ "name": "CLUSTER_NAME", "value": cluster }, { "name": "INTERRUPTION_QUEUE", "value": "Karpenter" }]);
    let pod = json!({ "serviceAccountName": "karpenter", "containers": [{ "name": "controller", "env": env }] });
    let metadata = |labels: Value| json!({ "name": "karpenter", "namespace": "karpenter", "labels": labels });
    let labels = json!({ "app.kubernetes.io/name": "karpenter" });
    let on_fargate =
        json!({ "app.kubernetes.io/name": "karpenter", "eks.amazonaws.com/fargate-profile": "controller" });
    [
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(labels.clone()),
            "spec": { "replicas": 1, "template": { "metadata": { "labels": labels }, "spec": pod } } }),
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata(on_fargate), "spec": pod }),
    ]
}

/// Writes both files into a folder of tofu's.
fn migrate(sandbox: &Sandbox, into: &Workspace) -> Result<()> {
    let items: Vec<Value> =
        objects(&sandbox.cluster_name).into_iter().chain(karpenter(&sandbox.cluster_name)).collect();
    let manifests = into.folder().join("manifests.yaml");
    fs::write(&manifests, json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())?;
    let file = |name: &str| into.folder().join(name);
    let mut karp = Command::new(&sandbox.products.karp);
    karp.arg("migrate").arg("-f").arg(&manifests).arg("-o").arg(file("karp.tf"));
    let output = karp.arg("--controller").arg(file("controller.tf")).output().context("starting karp migrate")?;
    ensure!(output.status.success(), "karp migrate: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn create(sandbox: &Sandbox, object: &Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let types = object.types.as_ref().context("an object without a kind")?;
    let kind = GroupVersionKind::try_from(types)?;
    let api: Api<DynamicObject> = Api::all_with(sandbox.client.clone(), &ApiResource::from_gvk(&kind));
    let created = api.create(&PostParams::default(), &object).await;
    created.with_context(|| format!("creating the {}", kind.kind))?;
    Ok(())
}

/// Makes an empty folder in which tofu calls the sandbox.
fn workspace(sandbox: &Sandbox, name: &str) -> Result<Workspace> {
    let nothing = tempfile::tempdir()?;
    sandbox.workspace_of(nothing.path(), name)
}
