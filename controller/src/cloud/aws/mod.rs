//! Instances of Amazon EC2.

mod addresses;
mod asked;
mod class;
mod failure;
mod fresh;
mod hardware;
mod launch;
mod lookups;
mod market;
mod memory;
mod moulds;
mod price_list;
mod profile;
mod reservations;
mod resolve;
mod templates;
mod together;
mod validation;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use karp_aws::capacity_reservations::Found;
use karp_aws::change::Permit;
use karp_aws::error::both;
use karp_aws::images::Image;
use karp_aws::instances::{BATCH_TAG, CLAIM_TAG};
use karp_aws::pace::Token;
use karp_aws::parameters::Parameters;
use karp_aws::placement_groups::{self, PlacementGroup};
use karp_aws::queue::Queue;
use karp_aws::security_groups::SecurityGroup;
use karp_aws::selector::Term;
use karp_aws::{Clients, Error, Settings, eks, fleet, instance_status, instances, launch_template, subnets};
use karp_domain::api::{
    Ami, AmiSelectorTerm, CapacityReservation, Ec2NodeClass, Ec2NodeClassSpec, NodeClaim, PlacementGroupSelector,
    Subnet, labels,
};
use karp_domain::catalogue::{CapacityType, Catalogue, NodeSettings, Zone};
use karp_domain::interruption::Health;
use karp_domain::price_file::PriceFile;
use karp_domain::user_data::ClusterFacts;
use kube::{Client, ResourceExt};
use moka::sync::Cache;
use tokio::sync::OnceCell;

use super::{
    CloudError, CloudProvider, Instance, LaunchError, LaunchOrder, Launched, Prepared, Presence, Problem, QueueMessage,
    Request, Resolved, Store, Termination, Told,
};
use crate::options::Options;
use addresses::Addresses;
use asked::{Asked, Ended};
use fresh::Fresh;
pub use hardware::Hardware;
use lookups::Lookups;
use market::{Key, Market};
pub use market::{Selling, sold};
use memory::Memory;
use price_list::PriceList;
use profile::Profiles;
use reservations::Reservations;
pub use reservations::offered;
use templates::Templates;
use validation::Unseen;

/// How long the cluster's description is good: its version changes with an upgrade, nothing else does.
const CLUSTER_LIFETIME: Duration = Duration::from_secs(300);
/// How long a listed instance serves the drift check, which looks at every claim in turn.
const INSTANCE_MEMORY: Duration = Duration::from_secs(60);
/// How often security groups are looked up again (Karpenter: 5 min).
const SECURITY_GROUPS: Duration = Duration::from_secs(300);
/// How often a placement group is looked up again.
const PLACEMENT_GROUPS: Duration = Duration::from_secs(300);
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
    asked: Asked,
    profiles: Profiles,
    parameters: Parameters,
    subnets: Lookups<Vec<Term>, Vec<subnets::Subnet>>,
    addresses: Addresses,
    groups: Lookups<Vec<Term>, Vec<SecurityGroup>>,
    /// By selector terms and Kubernetes version.
    images: Lookups<(Vec<AmiSelectorTerm>, String), Vec<Image>>,
    placements: Lookups<PlacementGroupSelector, Option<PlacementGroup>>,
    /// None where the gate ReservedCapacity is off.
    reservations: Option<Reservations>,
    /// Answers to dry runs, by template, type and subnet.
    validated: Lookups<(String, String, String), Option<Problem>>,
    /// What dry runs did not find, by the same.
    unseen: Lookups<(String, String, String), Unseen>,
    dry_runs: bool,
    /// Bytes of user data as rendered last, by class.
    user_data: Mutex<BTreeMap<String, usize>>,
    reserved_enis: u32,
    memory_permille: u64,
}

impl Aws {
    /// Makes the provider, which changes nothing without `permit`; nothing is asked of AWS but, in the background, what the region offers.
    ///
    /// # Errors
    /// [`Error::Configuration`] when there is no region, or the price file cannot be used.
    pub async fn new(options: &Options, client: Client, namespace: &str, permit: Permit) -> Result<Self, Error> {
        let settings = Settings { program: Some("karp-controller"), permit, ..Settings::default() };
        let clients = Clients::load(&settings).await?;
        let prices = PriceList::new(clients.clone(), options.isolated_vpc, Some(Store::new(client.clone(), namespace)));
        let memory = Memory::new(Some(Store::new(client, namespace)));
        let market = Market::new(clients.clone(), prices, price_file(options)?, memory);
        Ok(Self::with(clients, options, market))
    }

    fn with(clients: Clients, options: &Options, market: Market) -> Self {
        let market = Arc::new(market);
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
            asked: Asked::default(),
            profiles: Profiles::default(),
            parameters: Parameters::default(),
            subnets: Lookups::new(options.subnet_refresh_interval),
            addresses: Addresses::default(),
            groups: Lookups::new(SECURITY_GROUPS),
            images: Lookups::new(options.ami_refresh_interval),
            placements: Lookups::new(PLACEMENT_GROUPS),
            reservations: options
                .feature_gates
                .enabled("ReservedCapacity")
                .then(|| Reservations::new(options.reservation_poll)),
            validated: Lookups::new(validation::LIFETIME),
            // kept beyond the longest pause, so that it is known since when
            unseen: Lookups::new(2 * validation::UNSEEN_FOR_LONG),
            user_data: Mutex::default(),
            dry_runs: !options.disable_dry_run,
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

    /// Returns the placement group that a class selects; `None` when it selects none or there is none.
    async fn placement_group(&self, class: &Ec2NodeClass) -> Result<Option<PlacementGroup>, Error> {
        let Some(selector) = &class.spec.placement_group_selector else { return Ok(None) };
        let ask = || placement_groups::find(&self.clients, selector.id.as_deref(), selector.name.as_deref());
        let usable = |found: &Option<PlacementGroup>| found.as_ref().is_some_and(|group| group.available);
        self.placements.get(&class.name_any(), selector, usable, ask).await
    }

    /// Returns the capacity reservations that a class selects; `None` when it asks for none.
    async fn reservations(&self, class: &Ec2NodeClass) -> Result<Option<Vec<Found>>, Error> {
        let terms = &class.spec.capacity_reservation_selector_terms;
        match &self.reservations {
            Some(reservations) if !terms.is_empty() => {
                reservations.of(&self.clients, &class.name_any(), terms).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Says what the catalogue of a class is made of.
    async fn key(
        &self,
        class: &Ec2NodeClass,
        subnets: &[Subnet],
        images: Vec<Ami>,
        reservations: &[CapacityReservation],
    ) -> Result<Key, Error> {
        let zone = |subnet: &Subnet| Zone::new(&subnet.zone, subnet.zone_id.as_deref().unwrap_or_default());
        let mut zones: Vec<Zone> = subnets.iter().map(zone).collect();
        zones.sort();
        zones.dedup();
        let reservations = self.reservations.as_ref().map(|known| known.offered(reservations)).unwrap_or_default();
        let mut hardware = Hardware { settings: self.settings(&class.spec), ..Hardware::from_class(&class.spec) };
        // without a family nothing can be told to boot
        hardware.family = Some(self::class::family(&class.spec)?);
        hardware.images = Some(images);
        hardware.group = match self.placement_group(class).await {
            Ok(group) => group,
            // what was known before is as good until EC2 answers again
            Err(error) => self.market.hardware(&class.name_any()).ok_or(error)?.group,
        };
        hardware.demands.cluster_group = hardware.group.as_ref().is_some_and(PlacementGroup::is_cluster);
        Ok(Key { hardware, zones, reservations, generation: (0, 0) })
    }

    /// Returns what of an instance the pods on nodes of a class can use.
    fn settings(&self, spec: &Ec2NodeClassSpec) -> NodeSettings {
        NodeSettings {
            reserved_enis: self.reserved_enis,
            vm_memory_overhead_permille: self.memory_permille,
            ..NodeSettings::from_class(spec)
        }
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

    /// Without the gate ReservedCapacity, what runs in a reservation is on demand.
    fn gated(&self, instance: instances::Instance) -> instances::Instance {
        match instance.reservation {
            Some(_) if self.reservations.is_none() => {
                instances::Instance { reservation: None, capacity_type: CapacityType::OnDemand, ..instance }
            }
            _ => instance,
        }
    }

    async fn describe(&self, id: &str) -> Result<Option<instances::Instance>, CloudError> {
        Ok(self.asked.describe(&self.clients, id).await?.map(|instance| self.gated(instance)))
    }
}

/// Reads a price file; says in words what is wrong with it.
pub fn read_price_file(path: &Path) -> Result<PriceFile, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    PriceFile::parse(&text).map_err(|error| error.to_string())
}

/// Reads the price file, if one is named.
fn price_file(options: &Options) -> Result<PriceFile, Error> {
    let Some(path) = &options.price_file else { return Ok(PriceFile::default()) };
    read_price_file(path).map_err(|why| Error::configuration(format!("--price-file {}: {why}", path.display())))
}

fn read(instance: &instances::Instance) -> Instance {
    Instance {
        provider_id: instance.provider_id(),
        instance_type: instance.instance_type.clone(),
        zone: instance.zone.clone(),
        capacity_type: instance.capacity_type,
        reservation: instance.reservation.clone(),
        partition: instance.partition,
        image_id: instance.image_id.clone(),
        ending: instance.state.is_ending(),
        launched_at: instance.launched_at,
        claim: instance.tags.get(CLAIM_TAG).cloned(),
        batch: instance.tags.get(BATCH_TAG).cloned(),
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

    fn reservations(&self) -> BTreeMap<String, u32> {
        self.reservations.as_ref().map(Reservations::free).unwrap_or_default()
    }

    fn prices_read(&self) -> BTreeMap<CapacityType, Timestamp> {
        self.market.prices_read()
    }

    fn user_data_bytes(&self) -> BTreeMap<String, usize> {
        self.user_data.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn catalogue(&self, class: &Ec2NodeClass) -> Result<Arc<Catalogue>, CloudError> {
        let status = class.status.clone().unwrap_or_default();
        if let Some(reservations) = &self.reservations
            && !reservations.counted(&status.capacity_reservations)
        {
            // a fresh controller: what was reserved is counted before anything is bought
            drop(self.reservations(class).await);
        }
        let key = self.key(class, &status.subnets, status.amis, &status.capacity_reservations).await?;
        Ok(self.market.catalogue(&class.name_any(), key).await?)
    }

    async fn prepare(&self, order: &LaunchOrder<'_>) -> Result<Prepared, LaunchError> {
        launch::prepare(self, order).await
    }

    fn turn(&self) -> Option<Token> {
        self.clients.pace().create_fleet.try_take()
    }

    async fn await_turn(&self) -> Token {
        self.clients.pace().create_fleet.take().await
    }

    async fn launch(&self, prepared: &Prepared, turn: Token) -> Result<Launched, LaunchError> {
        let Request::Fleet { request, templates, subnets, addresses } = &prepared.request else {
            return Err(LaunchError::NodeClassNotReady("the request is for another cloud".to_owned()));
        };
        self.addresses.take(request, addresses);
        let answer = fleet::create(&self.clients, request, turn).await;
        self.addresses.settle(request, addresses, &answer);
        launch::read(self, request, templates, subnets, answer)
    }

    async fn find(&self, claim: &NodeClaim) -> Result<Vec<Instance>, CloudError> {
        let found = self.asked.of_claim(&self.clients, self.cluster_tag(), &claim.name_any()).await?;
        Ok(found.into_iter().map(|instance| read(&self.gated(instance))).collect())
    }

    async fn find_batch(&self, batch: &str) -> Result<Vec<Instance>, CloudError> {
        let found = self.asked.of_batch(&self.clients, self.cluster_tag(), batch).await?;
        Ok(found.into_iter().map(|instance| read(&self.gated(instance))).collect())
    }

    async fn tell_claim(&self, provider_id: &str, claim: &NodeClaim, class: &Ec2NodeClass) -> Result<Told, CloudError> {
        // one that is pending may have its volumes still to come
        let Some(instance) = self.describe(instance_id(provider_id)?).await? else { return Ok(Told::TooYoung) };
        if instance.state == instances::State::Pending {
            return Ok(Told::TooYoung);
        }
        if !instance.state.is_ending() {
            let tags = launch::claim_tags(class, &claim.name_any());
            instances::tag(&self.clients, &class::launched_with(&class.spec, &instance.id, &instance.volumes), &tags)
                .await?;
        }
        Ok(Told::Done)
    }

    async fn get(&self, provider_id: &str) -> Result<Presence, CloudError> {
        Ok(match self.describe(instance_id(provider_id)?).await? {
            Some(instance) if instance.state == instances::State::Terminated => Presence::Gone,
            Some(instance) => Presence::Exists(Box::new(read(&instance))),
            None => Presence::Unknown,
        })
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        // The class tells ours from those of EKS Auto Mode, which have a pool too.
        let ours = [labels::NODE_POOL, labels::EC2_NODE_CLASS].map(|key| (key.to_owned(), "*".to_owned()));
        let tags = [self.cluster_tag()].into_iter().chain(ours).collect();
        let found = instances::list(&self.clients, &tags).await?;
        let found: Vec<_> = found.into_iter().map(|instance| self.gated(instance)).collect();
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
        Ok(match self.asked.terminate(&self.clients, id).await? {
            Ended::Asked => Termination::InProgress,
            Ended::Unknown => Termination::Unknown,
        })
    }

    async fn resolve(&self, class: &Ec2NodeClass) -> Result<Resolved, CloudError> {
        let name = class.name_any();
        self.templates.collect(&self.clients, &name, &class::ownership(&self.cluster_name, &name)).await;
        let mut resolved = resolve::resolve(self, class).await?;
        if let Some(current) = resolved.instance_profile.as_deref().filter(|_| profile::may_have(class)) {
            let now = Timestamp::now();
            if self.profiles.collect(&self.clients, &self.cluster_name, class, current, now).await {
                resolved.outdated.push(labels::FORMER_INSTANCE_PROFILE);
            }
        }
        Ok(resolved)
    }

    fn marks(&self, class: &Ec2NodeClass) -> BTreeMap<String, String> {
        let former = profile::former(&self.cluster_name, class);
        former.map(|name| (labels::FORMER_INSTANCE_PROFILE.to_owned(), name.to_owned())).into_iter().collect()
    }

    async fn release(&self, class: &Ec2NodeClass) -> Result<(), CloudError> {
        let name = class.name_any();
        // each for itself: where one may not be deleted, the other is not left behind for that
        let templates = launch_template::delete_all(&self.clients, &class::ownership(&self.cluster_name, &name)).await;
        let profiles = self.profiles.release(&self.clients, &self.cluster_name, class).await;
        self.templates.forget(&name);
        self.market.forget(&name);
        self.subnets.forget(&name);
        self.groups.forget(&name);
        self.images.forget(&name);
        self.placements.forget(&name);
        self.reservations.iter().for_each(|reservations| reservations.forget(&name));
        self.validated.forget(&name);
        self.unseen.forget(&name);
        self.user_data.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        let (count, profiles) = both(templates, profiles)?;
        tracing::info!(EC2NodeClass.name = name, count, profiles, "deleted launch templates and instance profiles");
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
        // a group that cannot be looked up now is no reason to replace anything
        let group = self.placement_group(class).await.ok().flatten();
        let drift = |one: &instances::Instance| resolve::placement_drift(one, &class.spec, found, group.as_ref());
        let before = self.listed.get(id).map(|instance| drift(&instance));
        if let Some(known) = before
            && known != Some(resolve::RESERVATION_DRIFT)
        {
            return Ok(known.map(str::to_owned));
        }
        // Of a minute ago is no reason to replace a node where its reservation may have ended since.
        let Some(instance) = self.describe(id).await? else { return Ok(None) };
        let known = drift(&instance);
        self.listed.insert(id.to_owned(), instance);
        Ok(known.map(str::to_owned))
    }

    async fn note_memory(&self, instance_type: &str, image: &str, bytes: u64) {
        self.market.note_memory(instance_type, image, bytes).await;
    }

    async fn unwell(&self) -> Result<Vec<Health>, CloudError> {
        Ok(instance_status::unwell(&self.clients).await?)
    }

    async fn receive(&self) -> Result<Option<Vec<QueueMessage>>, CloudError> {
        let Some(queue) = self.queue().await? else { return Ok(None) };
        let messages = queue.receive().await?;
        let read = |message: karp_aws::queue::Message| QueueMessage {
            id: message.id,
            receipt: message.receipt,
            body: message.body,
        };
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
