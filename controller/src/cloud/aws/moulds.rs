//! What one request asks for: offerings that are bought alike, sorted by the launch template that they need.

use std::collections::BTreeMap;

use karp_aws::capacity_reservations::Taken;
use karp_aws::fleet::{self, Override};
use karp_domain::api::{Ami, Subnet};
use karp_domain::catalogue::{
    CapacityType, Catalogue, Price, PriceSource, RankedOffering, Reservation, ReservationKind,
};
use karp_domain::resources;
use karp_domain::user_data::ClusterFacts;

use super::class;
use crate::cloud::LaunchOrder;

/// What instances must have in common to come of one launch template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mould<'a> {
    /// The machine image.
    pub image: &'a str,
    /// The capacity reservation that they take.
    pub reservation: Option<Taken>,
    /// How many pods the kubelet is told to take, where it must be told.
    pub max_pods: Option<i64>,
    /// Whether the interface is given prefixes.
    pub prefixes: bool,
    /// Where EFA interfaces go, by network card and place on it, if pods ask for any.
    pub efa: Vec<(u32, u32)>,
}

/// Sorts the offerings of the first one's capacity type by the template that they need; EC2's bounds on templates and overrides cut the dearest.
pub fn sorted<'a>(
    order: &LaunchOrder<'_>,
    images: &'a [Ami],
    subnets: &BTreeMap<String, Subnet>,
    cluster: &ClusterFacts,
    tells_pods: bool,
) -> BTreeMap<Mould<'a>, Vec<Override>> {
    let mut sorted: BTreeMap<Mould<'_>, Vec<Override>> = BTreeMap::new();
    // interfaces that the class lists itself are the same on each type
    let wants_efa = order.class.spec.network_interfaces.is_empty()
        && order.claim.spec.resources.requests.contains(resources::AWS_EFA);
    let alike = bought_alike(order);
    // EC2 knows nothing of prices that are the operator's own
    let own_prices = alike.iter().any(|(offering, _)| offering.source == PriceSource::Overlaid);
    let mut prices: Vec<Price> = alike.iter().map(|(offering, _)| offering.price).collect();
    prices.dedup();
    for (offering, reservation) in alike.into_iter().take(fleet::MAX_OVERRIDES) {
        let Some(subnet) = subnets.get(&*offering.zone.name) else { continue };
        let Some(kind) = order.catalogue.get(&offering.instance_type) else { continue };
        let Some(image) = class::image_of(images, kind) else { continue };
        let pods = kind.capacity.get(resources::PODS).units();
        let prefixes = class::takes_prefixes(&order.class.spec, cluster, kind);
        let efa = if wants_efa { kind.efa_places.clone() } else { Vec::new() };
        let mould = Mould { image: &image.id, reservation, max_pods: tells_pods.then_some(pods), prefixes, efa };
        if sorted.len() == fleet::MAX_TEMPLATES && !sorted.contains_key(&mould) {
            continue;
        }
        sorted.entry(mould).or_default().push(Override {
            instance_type: offering.instance_type.to_string(),
            subnet_id: subnet.id.clone(),
            zone: subnet.zone.clone(),
            priority: own_prices.then(|| prices.partition_point(|price| *price < offering.price) as u32),
        });
    }
    sorted
}

/// Returns the offerings that one request can ask for together with the first: bought the same way and, where that is by reservation, of
/// its kind, for each type and zone the one with the most room; of blocks the first alone (EC2's bound).
fn bought_alike<'o>(order: &LaunchOrder<'o>) -> Vec<(&'o RankedOffering, Option<Taken>)> {
    let Some(first) = order.offerings.first() else { return Vec::new() };
    let alike = order.offerings.iter().filter(|one| one.capacity_type == first.capacity_type);
    if first.capacity_type != CapacityType::Reserved {
        return alike.map(|offering| (offering, None)).collect();
    }
    let mut held: Vec<(&RankedOffering, &Reservation)> =
        alike.filter_map(|one| Some((one, reservation(order.catalogue, one)?))).collect();
    let Some((_, Reservation { kind, interruptible, .. })) = held.first().copied() else { return Vec::new() };
    held.retain(|(_, other)| (other.kind, other.interruptible) == (*kind, *interruptible));
    if *kind == ReservationKind::CapacityBlock {
        held.truncate(1);
    }
    let place = |one: &RankedOffering| (one.instance_type.clone(), one.zone.clone());
    let roomier = |(one, reservation): &(&RankedOffering, &Reservation)| {
        let mut others = held.iter().filter(|(other, _)| place(other) == place(one));
        others.all(|(_, other)| (other.remaining, &reservation.id) <= (reservation.remaining, &other.id))
    };
    let best = held.iter().filter(|one| roomier(one));
    let taken =
        |held: &Reservation| Taken { id: held.id.to_string(), kind: held.kind, interruptible: held.interruptible };
    best.map(|(offering, reservation)| (*offering, Some(taken(reservation)))).collect()
}

/// The capacity reservation behind an offering.
fn reservation<'c>(catalogue: &'c Catalogue, offering: &RankedOffering) -> Option<&'c Reservation> {
    catalogue.reservation(offering.reservation.as_ref()?)?.reservation.as_ref()
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{AmiRequirement, Ec2NodeClass, NodeClaim, labels};
    use karp_domain::catalogue::{
        CapacityReservation, InstanceFacts, InstanceType, NodeSettings, Zone, builtin, builtin_type, overhead,
        reserved_offerings,
    };
    use karp_domain::quantity::Quantity;
    use karp_domain::requirement::Operator;

    use super::*;

    fn image(id: &str, arch: &str) -> Ami {
        let requirement =
            AmiRequirement { key: labels::ARCH.to_owned(), operator: Operator::In, values: vec![arch.to_owned()] };
        Ami { id: id.to_owned(), requirements: vec![requirement], ..Ami::default() }
    }

    fn offering(kind: &str, zone: &str, capacity_type: CapacityType) -> RankedOffering {
        RankedOffering {
            instance_type: kind.into(),
            zone: Zone::new(zone, ""),
            capacity_type,
            price: Price::from_micro_dollars(1),
            source: PriceSource::Published,
            reservation: None,
        }
    }

    #[test]
    fn each_architecture_gets_its_own_template_and_one_subnet_a_zone() {
        let images = [image("ami-amd", "amd64"), image("ami-arm", "arm64")];
        let subnet = |id: &str, zone: &str| Subnet { id: id.to_owned(), zone: zone.to_owned(), zone_id: None };
        let subnets = BTreeMap::from([("a".to_owned(), subnet("subnet-a", "a"))]);
        let spot = CapacityType::Spot;
        let offerings = [
            offering("m7g.large", "a", spot),
            offering("m7i.large", "a", spot),
            offering("m7i.large", "b", spot),
            offering("m7i.large", "a", CapacityType::OnDemand),
        ];
        let sorted = sorted_by(&offerings, &images, &subnets, &NodeSettings::default());
        assert_eq!(sorted.keys().map(|mould| mould.image).collect::<Vec<_>>(), ["ami-amd", "ami-arm"]);
        let [amd, _] = sorted.values().collect::<Vec<_>>()[..] else { panic!("two templates") };
        assert_eq!(amd.len(), 1, "no subnet in zone b, and one capacity type a request");
        assert_eq!(amd[0].subnet_id, "subnet-a");
    }

    fn sorted_by<'a>(
        offerings: &[RankedOffering],
        images: &'a [Ami],
        subnets: &BTreeMap<String, Subnet>,
        settings: &NodeSettings,
    ) -> BTreeMap<Mould<'a>, Vec<Override>> {
        let claim = NodeClaim::new("c", karp_domain::api::NodeClaimSpec::default());
        let mut class = Ec2NodeClass::new("c", karp_domain::api::Ec2NodeClassSpec::default());
        class.spec.ip_prefix_count = i32::try_from(settings.ip_prefix_count).ok();
        let facts = offerings.iter().filter_map(|o| builtin_type(&o.instance_type));
        let catalogue = Catalogue::estimated(facts, &[], settings);
        let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings, catalogue: &catalogue };
        sorted(&order, images, subnets, &ClusterFacts::default(), settings.tells_pods())
    }

    #[test]
    fn types_share_a_template_where_their_efa_interfaces_go_to_the_same_places() {
        let images = [image("ami-amd", "amd64")];
        let subnet = Subnet { id: "subnet-a".to_owned(), zone: "a".to_owned(), zone_id: None };
        let subnets = BTreeMap::from([("a".to_owned(), subnet)]);
        let names = ["p5.48xlarge", "p5e.48xlarge", "p6-b300.48xlarge"];
        let offerings = names.map(|kind| offering(kind, "a", CapacityType::OnDemand));
        let settings = NodeSettings::default();
        let catalogue = Catalogue::estimated(names.iter().filter_map(|name| builtin_type(name)), &[], &settings);
        let mut claim = NodeClaim::new("c", karp_domain::api::NodeClaimSpec::default());
        let class = Ec2NodeClass::new("c", karp_domain::api::Ec2NodeClassSpec::default());
        let moulds = |claim: &NodeClaim| {
            let order = LaunchOrder { claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
            let sorted = sorted(&order, &images, &subnets, &ClusterFacts::default(), false);
            sorted.into_iter().map(|(mould, types)| (mould.efa.len(), types.len())).collect::<Vec<_>>()
        };
        assert_eq!(moulds(&claim), [(0, 3)], "no pod asks for any");
        claim.spec.resources.requests.set(resources::AWS_EFA, Quantity::from_units(1));
        assert_eq!(moulds(&claim), [(32, 2), (16, 1)]);
    }

    #[test]
    fn a_request_takes_reservations_of_one_kind_and_one_for_each_place() {
        let zones = [Zone::new("a", ""), Zone::new("b", "")];
        let held = |id: &str, kind, zone: &str, remaining| CapacityReservation {
            instance_type: "m7i.large".into(),
            zone: zone.into(),
            reservation: Reservation {
                id: id.into(),
                kind,
                interruptible: false,
                tenancy: Default::default(),
                remaining,
            },
            expiring: false,
        };
        let request = |reservations: &[CapacityReservation]| {
            let facts = builtin_type("m7i.large").expect("a type");
            let sold = reserved_offerings("m7i.large", &zones, reservations, Price::from_micro_dollars(100_800));
            let catalogue = Catalogue::new(vec![InstanceType::from_facts(facts, &NodeSettings::default(), sold)]);
            let (types, market) = catalogue.select(&Default::default());
            let offerings = catalogue.ranked(&types, market);
            let claim = NodeClaim::new("c", karp_domain::api::NodeClaimSpec::default());
            let class = Ec2NodeClass::new("c", karp_domain::api::Ec2NodeClassSpec::default());
            let order =
                LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
            let ids = bought_alike(&order).into_iter().filter_map(|(_, taken)| taken).map(|taken| taken.id);
            ids.collect::<Vec<_>>()
        };
        use ReservationKind::{CapacityBlock, Default as Plain};
        let plain = [held("cr-1", Plain, "a", 1), held("cr-2", Plain, "a", 5), held("cr-3", Plain, "b", 2)];
        assert_eq!(request(&plain), ["cr-2", "cr-3"], "the roomiest of each zone");
        let blocks = [held("cr-1", CapacityBlock, "a", 1), held("cr-2", CapacityBlock, "b", 3)];
        assert_eq!(request(&blocks), ["cr-1"]);
        assert_eq!(request(&[&plain[..1], &blocks[1..]].concat()), ["cr-1"], "never of two kinds");
        let even = [held("cr-1", Plain, "a", 2), held("cr-2", Plain, "a", 2)];
        assert_eq!(request(&even), ["cr-1"]);
    }

    #[test]
    fn a_request_names_no_more_templates_than_ec2_takes() {
        let images = [image("ami-amd", "amd64"), image("ami-arm", "arm64")];
        let subnet = Subnet { id: "subnet-a".to_owned(), zone: "a".to_owned(), zone_id: None };
        let subnets = BTreeMap::from([("a".to_owned(), subnet)]);
        let settings = NodeSettings { reserved_enis: 1, ..NodeSettings::default() };
        let told = |facts: &'static InstanceFacts| ((facts.arch, overhead::max_pods(facts, &settings)), facts);
        let kinds: BTreeMap<_, _> = builtin().iter().map(told).collect();
        assert!(
            kinds.len() > fleet::MAX_TEMPLATES,
            "each of these is told another number of pods, or has another image"
        );
        let offerings: Vec<_> =
            kinds.values().map(|facts| offering(&facts.name, "a", CapacityType::OnDemand)).collect();
        let sorted = sorted_by(&offerings, &images, &subnets, &settings);
        let first = sorted.values().flatten().any(|one| one.instance_type == *offerings[0].instance_type);
        assert_eq!((sorted.len(), first), (fleet::MAX_TEMPLATES, true), "the best ones stay");
    }

    #[test]
    fn kubelets_are_told_their_pods_where_images_reckon_otherwise() {
        let images = [image("ami-amd", "amd64")];
        let subnet = Subnet { id: "subnet-a".to_owned(), zone: "a".to_owned(), zone_id: None };
        let subnets = BTreeMap::from([("a".to_owned(), subnet)]);
        let offerings = ["m7i.large", "m7i.xlarge", "m7i.16xlarge", "m4.large"]
            .map(|kind| offering(kind, "a", CapacityType::OnDemand));
        let pods = |settings: NodeSettings| {
            let sorted = sorted_by(&offerings, &images, &subnets, &settings);
            sorted.into_keys().map(|mould| (mould.max_pods, mould.prefixes)).collect::<Vec<_>>()
        };
        assert_eq!(pods(NodeSettings::default()), [(None, false)]);
        let prefixes = NodeSettings { ip_prefix_count: 1, ..NodeSettings::default() };
        assert_eq!(pods(prefixes.clone()), [(Some(20), false), (Some(110), true), (Some(250), true)]);
        assert_eq!(pods(NodeSettings { max_pods: Some(58), ..prefixes }), [(None, false), (None, true)]);
        let reserved = NodeSettings { reserved_enis: 1, ..NodeSettings::default() };
        assert_eq!(pods(reserved)[0], (Some(11), false), "m4.large: one interface of ten addresses");
    }
}
