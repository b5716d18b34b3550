//! A cloud of Node objects only: kwok plays their kubelets, nothing is contacted, nothing is paid. The Node is the instance.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use karp_aws::pace::Token;
use karp_domain::api::{Ami, AmiRequirement, Ec2NodeClass, NodeClaim, SecurityGroup, Subnet, labels};
use karp_domain::catalogue::{CapacityType, Catalogue, InstanceType, NodeSettings, Zone, builtin};
use karp_domain::requirement::Operator;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};

use super::{
    CloudError, CloudProvider, Instance, LaunchError, LaunchOrder, Launched, Prepared, Presence, QueueMessage, Request,
    Resolved, Termination,
};
use crate::effect;

/// Marks a Node that kwok may play.
const KWOK: &str = "kwok.x-k8s.io/node";
/// Names the claim on a simulated Node, as the tag of that name does on an instance.
const CLAIM: &str = "karpenter.sh/nodeclaim";
/// The region that simulated zones belong to.
const REGION: &str = "us-east-1";
/// Zones with their ids; as many as most regions have.
const ZONES: [(&str, &str); 3] = [("us-east-1a", "use1-az1"), ("us-east-1b", "use1-az2"), ("us-east-1c", "use1-az4")];
/// The image that simulated nodes say they run.
const IMAGE: &str = "ami-simulated";

/// Makes instances that are Node objects.
pub struct Simulated {
    nodes: Api<Node>,
    client: Client,
    catalogue: Arc<Catalogue>,
}

impl Simulated {
    /// Makes the provider; the built-in catalogue is offered in three zones at estimated prices.
    pub fn new(client: Client) -> Self {
        let zones = ZONES.map(|(name, id)| Zone::new(name, id));
        let catalogue = Arc::new(Catalogue::estimated(builtin(), &zones, &NodeSettings::default()));
        Self { nodes: Api::all(client.clone()), client, catalogue }
    }

    /// Reads one of its nodes; a claim's name is its node's.
    async fn node(&self, name: &str) -> Result<Option<Node>, CloudError> {
        let found = self.nodes.get_opt(name).await.map_err(|error| retry(&error))?;
        Ok(found.filter(|node| node.annotations().contains_key(CLAIM)))
    }

    async fn by_id(&self, id: &str) -> Result<Option<Node>, CloudError> {
        let name = id.rsplit('/').next().unwrap_or_default();
        Ok(self.node(name).await?.filter(|node| provider_id(node) == id))
    }
}

fn retry(error: &kube::Error) -> CloudError {
    CloudError::Retry { after: None, message: error.to_string() }
}

fn provider_id(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}

fn instance(node: &Node) -> Instance {
    let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
    Instance {
        provider_id: provider_id(node).to_owned(),
        instance_type: label(labels::INSTANCE_TYPE),
        zone: label(labels::ZONE),
        capacity_type: label(labels::CAPACITY_TYPE).parse().unwrap_or(CapacityType::OnDemand),
        reservation: None,
        partition: None,
        image_id: IMAGE.to_owned(),
        ending: false,
        launched_at: node.creation_timestamp().map(|time| time.0),
        claim: node.annotations().get(CLAIM).cloned(),
        batch: None,
    }
}

/// Makes the Node that a launch gives: what kubelet would register with, unregistered taint included.
fn new_node(claim: &NodeClaim, kind: &InstanceType, offering: &karp_domain::catalogue::RankedOffering) -> Node {
    let name = claim.name_any();
    let mut node_labels = claim.metadata.labels.clone().unwrap_or_default();
    for (key, values) in &kind.labels {
        if let [value] = values.as_slice() {
            node_labels.insert(key.to_string(), value.to_string());
        }
    }
    for (key, value) in [
        (labels::INSTANCE_TYPE, &*offering.instance_type),
        (labels::ZONE, &*offering.zone.name),
        (labels::ZONE_ID, &*offering.zone.id),
        (labels::REGION, REGION),
        (labels::CAPACITY_TYPE, offering.capacity_type.as_str()),
        (labels::OS, "linux"),
        (labels::HOSTNAME, &name),
    ] {
        node_labels.insert(key.to_owned(), value.to_owned());
    }
    let own_taints = claim.spec.taints.iter().chain(&claim.spec.startup_taints).map(|taint| Taint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.as_str().to_owned(),
        time_added: None,
    });
    let unregistered =
        Taint { key: labels::UNREGISTERED.to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() };
    let arch = node_labels.get(labels::ARCH).cloned().unwrap_or_default();
    Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(node_labels),
            annotations: Some(BTreeMap::from([(KWOK.to_owned(), "fake".to_owned()), (CLAIM.to_owned(), name.clone())])),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(format!("simulated:///{}/{name}", offering.zone.name)),
            taints: Some(own_taints.chain([unregistered]).collect()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(kind.capacity.to_api()),
            allocatable: Some(kind.allocatable().to_api()),
            node_info: Some(NodeSystemInfo {
                architecture: arch,
                operating_system: "linux".to_owned(),
                kubelet_version: "simulated".to_owned(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }),
    }
}

#[async_trait]
impl CloudProvider for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn catalogue(&self, _: &Ec2NodeClass) -> Result<Arc<Catalogue>, CloudError> {
        Ok(self.catalogue.clone())
    }

    async fn prepare(&self, order: &LaunchOrder<'_>) -> Result<Prepared, LaunchError> {
        let Some(offering) = order.offerings.first() else {
            return Err(LaunchError::InsufficientCapacity {
                offerings: Vec::new(),
                message: "no instance type has an offering that the claim may use".to_owned(),
            });
        };
        let kind = order.catalogue.get(&offering.instance_type).ok_or_else(|| {
            LaunchError::NodeClassNotReady(format!("{} is not in the catalogue", offering.instance_type))
        })?;
        let digest = format!("{}/{}/{}", offering.capacity_type, offering.zone.name, offering.instance_type);
        let node = Box::new(new_node(order.claim, kind, offering));
        Ok(Prepared { digest, request: Request::Simulated { node }, shared: None })
    }

    async fn launch(&self, prepared: &Prepared, _: Token) -> Result<Launched, LaunchError> {
        let Request::Simulated { node } = &prepared.request else {
            return Err(LaunchError::NodeClassNotReady("the request is for another cloud".to_owned()));
        };
        let created = match self.nodes.create(&PostParams::default(), node).await {
            Ok(created) => created,
            // The claim's name is the node's: it was launched before.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                self.nodes.get(&node.name_any()).await.map_err(|error| retry(&error))?
            }
            Err(error) => return Err(retry(&error).into()),
        };
        Ok(Launched { instance: instance(&created), others: Vec::new(), refused: Vec::new(), short: None })
    }

    async fn find(&self, claim: &NodeClaim) -> Result<Vec<Instance>, CloudError> {
        Ok(self.node(&claim.name_any()).await?.iter().map(instance).collect())
    }

    async fn get(&self, id: &str) -> Result<Presence, CloudError> {
        let found = self.by_id(id).await?;
        Ok(found.map_or(Presence::Gone, |node| Presence::Exists(Box::new(instance(&node)))))
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let listed = self.nodes.list(&ListParams::default()).await.map_err(|error| retry(&error))?;
        Ok(listed.items.iter().filter(|node| node.annotations().contains_key(CLAIM)).map(instance).collect())
    }

    async fn terminate(&self, id: &str) -> Result<Termination, CloudError> {
        // The Node's own finalizer keeps it until this says that the instance is gone.
        if let Some(node) = self.by_id(id).await? {
            let uid = node.uid().unwrap_or_default();
            effect::delete::<Node>(&self.client, &node.name_any(), &uid).await.map_err(|error| retry(&error))?;
        }
        Ok(Termination::Gone)
    }

    async fn resolve(&self, class: &Ec2NodeClass) -> Result<Resolved, CloudError> {
        let subnet = |(index, (zone, id)): (usize, (&str, &str))| Subnet {
            id: format!("subnet-simulated{index}"),
            zone: zone.to_owned(),
            zone_id: Some(id.to_owned()),
        };
        let image = |arch: &str| Ami {
            id: IMAGE.to_owned(),
            name: Some(format!("simulated-{arch}")),
            deprecated: None,
            requirements: vec![AmiRequirement {
                key: labels::ARCH.to_owned(),
                operator: Operator::In,
                values: vec![arch.to_owned()],
            }],
        };
        Ok(Resolved {
            subnets: ZONES.into_iter().enumerate().map(subnet).collect(),
            security_groups: vec![SecurityGroup { id: "sg-simulated".to_owned(), name: Some("simulated".to_owned()) }],
            amis: vec![image("amd64"), image("arm64")],
            capacity_reservations: None,
            instance_profile: class.spec.instance_profile.clone().or_else(|| class.spec.role.clone()),
            problems: Vec::new(),
            remark: None,
            look_again: None,
            outdated: Vec::new(),
        })
    }

    async fn release(&self, _: &Ec2NodeClass) -> Result<(), CloudError> {
        Ok(())
    }

    async fn drift(&self, _: &NodeClaim, _: &Ec2NodeClass) -> Result<Option<String>, CloudError> {
        Ok(None)
    }

    async fn receive(&self) -> Result<Option<Vec<QueueMessage>>, CloudError> {
        Ok(None)
    }

    async fn delete_messages(&self, _: &[String]) -> Result<(), CloudError> {
        Ok(())
    }
}
