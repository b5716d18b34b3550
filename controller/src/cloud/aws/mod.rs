//! Instances of Amazon EC2.

mod class;
mod failure;
mod fresh;
mod launch;
mod market;
mod resolve;
mod templates;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use karp_aws::queue::Queue;
use karp_aws::user_data::ClusterFacts;
use karp_aws::{Clients, Error, Settings, eks, instances, launch_template, subnets};
use karp_domain::api::{Ec2NodeClass, NodeClaim, Subnet, labels};
use karp_domain::catalogue::{Catalogue, NodeSettings, Zone};
use kube::ResourceExt;
use moka::sync::Cache;
use tokio::sync::OnceCell;

use super::{
    CloudError, CloudProvider, Instance, LaunchError, LaunchOrder, Launched, Prepared, QueueMessage, Request, Resolved,
    Termination,
};
use crate::options::Options;
use fresh::Fresh;
use market::{Key, Market};
use templates::Templates;

/// The tag that names an instance's claim.
const CLAIM_TAG: &str = "karpenter.sh/nodeclaim";
/// How long the cluster's description is good: its version changes with an upgrade, nothing else does.
const CLUSTER_LIFETIME: Duration = Duration::from_secs(300);
/// How long a listed instance serves the drift check, which looks at every claim in turn.
const INSTANCE_MEMORY: Duration = Duration::from_secs(60);
/// Instances that are remembered for it.
const INSTANCES: u64 = 20_000;

/// Makes instances of Amazon EC2.
pub struct Aws {
    clients: Clients,
    cluster_name: String,
    /// What the options say of the cluster; the rest is asked of EKS.
    endpoint: String,
    certificate_authority: String,
    queue_name: String,
    queue: OnceCell<Queue>,
    cluster: Arc<Fresh<eks::Cluster>>,
    market: Arc<Market>,
    templates: Templates,
    listed: Cache<String, instances::Instance>,
    /// The subnets of each class as last described, with their free addresses.
    subnets: Mutex<HashMap<String, Vec<subnets::Subnet>>>,
    reserved_enis: u32,
    memory_permille: u64,
}

impl Aws {
    /// Makes the provider; nothing is asked of AWS but, in the background, what the region offers.
    ///
    /// # Errors
    /// [`Error::Configuration`] when there is no region.
    pub async fn new(options: &Options) -> Result<Self, Error> {
        let settings = Settings { program: Some("karp-controller"), ..Settings::default() };
        Ok(Self::with(Clients::load(&settings).await?, options))
    }

    fn with(clients: Clients, options: &Options) -> Self {
        let market = Arc::new(Market::new(clients.clone(), options.isolated_vpc));
        let early = market.clone();
        tokio::spawn(async move { early.prefetch().await });
        Self {
            clients,
            cluster_name: options.cluster_name.clone(),
            endpoint: options.cluster_endpoint.clone(),
            certificate_authority: options.cluster_ca_bundle.clone(),
            queue_name: options.interruption_queue.clone(),
            queue: OnceCell::new(),
            cluster: Fresh::new(CLUSTER_LIFETIME),
            market,
            templates: Templates::default(),
            listed: Cache::builder().max_capacity(INSTANCES).time_to_live(INSTANCE_MEMORY).build(),
            subnets: Mutex::default(),
            reserved_enis: options.reserved_enis,
            memory_permille: (options.vm_memory_overhead_percent * 1000.0).round().clamp(0.0, 1000.0) as u64,
        }
    }

    async fn described(&self) -> Result<Arc<eks::Cluster>, Error> {
        let (clients, name) = (self.clients.clone(), self.cluster_name.clone());
        let (cluster, _) = self.cluster.get(move || async move { eks::describe(&clients, &name).await }).await?;
        Ok(cluster)
    }

    /// Returns what nodes must know of the cluster.
    async fn cluster(&self) -> Result<ClusterFacts, Error> {
        let cluster = self.described().await?;
        let own = |option: &String, found: &String| if option.is_empty() { found.clone() } else { option.clone() };
        Ok(ClusterFacts {
            name: self.cluster_name.clone(),
            endpoint: own(&self.endpoint, &cluster.endpoint),
            certificate_authority: own(&self.certificate_authority, &cluster.certificate_authority),
            service_cidr: cluster.service_cidr.clone(),
        })
    }

    /// Returns a class's subnet for each zone: the one with the most free addresses when it was last described.
    fn subnets_by_zone(&self, class: &str, resolved: &[Subnet]) -> BTreeMap<String, Subnet> {
        let described = self.subnets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known: Vec<subnets::Subnet> = described.get(class).cloned().unwrap_or_default();
        known.retain(|subnet| resolved.iter().any(|one| one.id == subnet.id));
        let mut chosen: BTreeMap<String, Subnet> =
            resolved.iter().rev().map(|subnet| (subnet.zone.clone(), subnet.clone())).collect();
        for (zone, best) in subnets::one_per_zone(&known) {
            if let Some(subnet) = resolved.iter().find(|one| one.id == best.id) {
                chosen.insert(zone.to_owned(), subnet.clone());
            }
        }
        chosen
    }

    async fn queue(&self) -> Result<Option<&Queue>, Error> {
        if self.queue_name.is_empty() {
            return Ok(None);
        }
        self.queue.get_or_try_init(|| Queue::open(&self.clients, &self.queue_name)).await.map(Some)
    }

    fn cluster_tag(&self) -> (String, String) {
        (format!("kubernetes.io/cluster/{}", self.cluster_name), "owned".to_owned())
    }

    async fn describe(&self, id: &str) -> Result<Option<instances::Instance>, Error> {
        let found = instances::describe(&self.clients, std::slice::from_ref(&id.to_owned())).await?;
        Ok(found.into_iter().next())
    }
}

fn read(instance: &instances::Instance) -> Instance {
    Instance {
        provider_id: instance.provider_id(),
        instance_type: instance.instance_type.clone(),
        zone: instance.zone.clone(),
        capacity_type: instance.capacity_type,
        image_id: instance.image_id.clone(),
        ending: instance.state.is_ending(),
        launched_at: instance.launched_at,
        claim: instance.tags.get(CLAIM_TAG).cloned(),
    }
}

fn instance_id(provider_id: &str) -> Result<&str, CloudError> {
    instances::instance_id(provider_id).ok_or_else(|| CloudError::Refused {
        reason: "ProviderIDInvalid".to_owned(),
        message: format!("{provider_id} is no provider id of an EC2 instance"),
    })
}

#[async_trait]
impl CloudProvider for Aws {
    fn name(&self) -> &'static str {
        "aws"
    }

    async fn catalogue(&self, class: &Ec2NodeClass) -> Result<Arc<Catalogue>, CloudError> {
        let family = class::family(&class.spec)?;
        let status = class.status.clone().unwrap_or_default();
        let mut zones: Vec<Zone> = status
            .subnets
            .iter()
            .map(|subnet| Zone::new(&subnet.zone, subnet.zone_id.as_deref().unwrap_or_default()))
            .collect();
        zones.sort();
        zones.dedup();
        let settings = NodeSettings {
            reserved_enis: self.reserved_enis,
            vm_memory_overhead_permille: self.memory_permille,
            ..NodeSettings::from_class(&class.spec)
        };
        let key = Key { family, settings, zones, images: status.amis, generation: 0 };
        Ok(self.market.catalogue(&class.name_any(), key).await?)
    }

    async fn prepare(&self, order: &LaunchOrder<'_>) -> Result<Prepared, LaunchError> {
        launch::prepare(self, order).await
    }

    async fn launch(&self, prepared: &Prepared) -> Result<Launched, LaunchError> {
        let Request::Fleet { request, images } = &prepared.request else {
            return Err(LaunchError::NodeClassNotReady("the request is for another cloud".to_owned()));
        };
        launch::launch(self, request, images).await
    }

    async fn find(&self, claim: &NodeClaim) -> Result<Vec<Instance>, CloudError> {
        let tags = BTreeMap::from([self.cluster_tag(), (CLAIM_TAG.to_owned(), claim.name_any())]);
        Ok(instances::list(&self.clients, &tags).await?.iter().map(read).collect())
    }

    async fn get(&self, provider_id: &str) -> Result<Option<Instance>, CloudError> {
        let found = self.describe(instance_id(provider_id)?).await?;
        Ok(found.filter(|instance| instance.state != instances::State::Terminated).map(|instance| read(&instance)))
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let tags = BTreeMap::from([self.cluster_tag(), (labels::NODE_POOL.to_owned(), "*".to_owned())]);
        let found = instances::list(&self.clients, &tags).await?;
        for instance in &found {
            self.listed.insert(instance.id.clone(), instance.clone());
        }
        Ok(found.iter().map(read).collect())
    }

    async fn terminate(&self, provider_id: &str) -> Result<Termination, CloudError> {
        let id = instance_id(provider_id)?;
        match self.describe(id).await?.map(|instance| instance.state) {
            Some(instances::State::Terminated) => return Ok(Termination::Gone),
            Some(instances::State::ShuttingDown) => return Ok(Termination::InProgress),
            // Not listed is not yet gone: a list may lag behind. Ending it settles the question.
            _ => {}
        }
        let answers = instances::terminate(&self.clients, &[id.to_owned()]).await;
        match answers.into_iter().next() {
            Some((_, Err(error))) if error.is_not_found() => Ok(Termination::Gone),
            Some((_, Err(error))) => Err(error.into()),
            Some((_, Ok(()))) | None => Ok(Termination::InProgress),
        }
    }

    async fn resolve(&self, class: &Ec2NodeClass) -> Result<Resolved, CloudError> {
        let name = class.name_any();
        self.templates.collect(&self.clients, &name, &class::ownership(&self.cluster_name, &name)).await;
        resolve::resolve(self, class).await
    }

    async fn release(&self, class: &Ec2NodeClass) -> Result<(), CloudError> {
        let name = class.name_any();
        let count = launch_template::delete_all(&self.clients, &class::ownership(&self.cluster_name, &name)).await?;
        self.templates.forget(&name);
        self.market.forget(&name);
        self.subnets.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        tracing::info!(EC2NodeClass.name = name, count, "deleted launch templates");
        Ok(())
    }

    async fn drift(&self, claim: &NodeClaim, class: &Ec2NodeClass) -> Result<Option<String>, CloudError> {
        let (Some(found), Some(status)) = (&class.status, &claim.status) else { return Ok(None) };
        if let Some(image) = &status.image_id {
            let labels = claim.labels();
            let fits = class::image_for(&found.amis, |key| labels.get(key).cloned());
            // A class that resolves to nothing is broken, not changed: its nodes stay.
            if fits.is_some() && !found.amis.iter().any(|one| one.id == *image) {
                return Ok(Some("AMIDrift".to_owned()));
            }
        }
        let Some(id) = status.provider_id.as_deref().and_then(instances::instance_id) else { return Ok(None) };
        let instance = match self.listed.get(id) {
            Some(instance) => instance,
            None => match self.describe(id).await? {
                Some(instance) => {
                    self.listed.insert(id.to_owned(), instance.clone());
                    instance
                }
                None => return Ok(None),
            },
        };
        Ok(resolve::placement_drift(&instance, found).map(str::to_owned))
    }

    async fn receive(&self) -> Result<Option<Vec<QueueMessage>>, CloudError> {
        let Some(queue) = self.queue().await? else { return Ok(None) };
        let messages = queue.receive().await?;
        let read = |message: karp_aws::queue::Message| QueueMessage { receipt: message.receipt, body: message.body };
        Ok(Some(messages.into_iter().map(read).collect()))
    }

    async fn delete_messages(&self, receipts: &[String]) -> Result<(), CloudError> {
        let Some(queue) = self.queue().await? else { return Ok(()) };
        let refused = queue.delete(receipts).await?;
        if refused > 0 {
            tracing::warn!(refused, "messages could not be deleted and will come again");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
