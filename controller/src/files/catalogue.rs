//! What can be bought: a list of instance types from a file, or the built-in table at prices that a controller kept, else at estimates, and
//! without what its region does not sell, or a controller could not have a short while ago.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karp_aws::prices::Prices;
use karp_domain::api::{Ec2NodeClass, RequirementSpec, conditions, labels};
use karp_domain::catalogue::{
    CapacityReservation, Catalogue, InstanceType, Listing, SeenMemory, Unavailable, Zone, builtin,
};
use karp_domain::cluster::Catalogues;
use karp_domain::price_file::PriceFile;
use karp_domain::requirement::Operator;

use super::{BadInput, Objects, Origin, source, text};
use crate::cloud::aws::{Hardware, Selling, offered, read_price_file, sold};
use crate::cloud::{Capacity, Kept};

/// Zones when neither the command line nor any object names one.
const DEFAULT_ZONES: [(&str, &str); 3] =
    [("us-east-1a", "use1-az1"), ("us-east-1b", "use1-az2"), ("us-east-1c", "use1-az4")];

/// Says what is offered.
pub struct Offered {
    types: Types,
    /// What the account pays instead.
    file: PriceFile,
}

enum Types {
    /// These types, the same under every node class: a list tells what is allocatable, so no class changes it.
    Listed(Arc<Catalogue>),
    /// The built-in table under the settings of each node class, in these zones; in the zones that the objects name when there are none.
    Builtin(Vec<Zone>),
}

/// What a controller has learnt and kept.
#[derive(Default)]
pub struct Known {
    prices: Prices,
    memory: SeenMemory,
    capacity: Capacity,
}

impl Known {
    fn of(objects: &Objects) -> Self {
        let maps = || objects.config_maps.iter().map(|found| &*found.object);
        Known {
            prices: maps().find_map(Prices::from_map).unwrap_or_default(),
            memory: maps().find_map(SeenMemory::from_map).unwrap_or_default(),
            capacity: maps().find_map(Capacity::from_map).unwrap_or_default(),
        }
    }

    /// Says whether the region has a type, as far as prices tell: the price list names what is sold on demand there, and some are sold
    /// as spot or reserved only. Without a price list nothing is known, and every type may be there.
    fn has(&self, instance_type: &str, reservations: &[CapacityReservation]) -> bool {
        let Prices { on_demand, spot, .. } = &self.prices;
        on_demand.is_empty()
            || on_demand.contains_key(instance_type)
            || spot.contains_key(instance_type)
            || reservations.iter().any(|held| *held.instance_type == *instance_type)
    }
}

/// A catalogue of built-in types, and what it is made of.
struct Made {
    hardware: Hardware,
    zones: Vec<Zone>,
    reservations: Vec<CapacityReservation>,
    catalogue: Arc<Catalogue>,
}

impl Offered {
    /// Makes what the command line says: a file of types, or zones for the built-in ones and what the account pays for them.
    ///
    /// # Errors
    /// [`BadInput`] when a file cannot be read.
    pub fn new(file: Option<&Path>, zones: &[String], price_file: Option<&Path>) -> Result<Self, BadInput> {
        let types = match file {
            Some(file) => Types::Listed(Arc::new(Catalogue::new(instance_types(file)?))),
            None => Types::Builtin(zones.iter().map(|name| zone(name)).collect()),
        };
        let file = match price_file {
            Some(path) => read_price_file(path).map_err(|why| Origin::new(path).problem(why))?,
            None => PriceFile::default(),
        };
        Ok(Offered { types, file })
    }

    /// Makes the catalogue of every node class that a pool or claim names, whether or not the class is there; not of one that is known not to
    /// be ready. Prices are those that the objects keep, else estimates; what they keep of missing capacity holds at `now`.
    pub fn catalogues(&self, objects: &Objects, now: Timestamp) -> Catalogues {
        let pools = objects.pools.iter().map(|pool| &pool.object.spec.template.spec.node_class_ref);
        let claims = objects.claims.iter().map(|claim| &claim.object.spec.node_class_ref);
        let names: BTreeSet<&str> = pools.chain(claims).map(|class| class.name.as_str()).collect();
        let known = Known::of(objects);
        let mut missing = Unavailable::default();
        if let Types::Builtin(_) = self.types {
            missing.recall(&known.capacity.absent, Duration::ZERO, now);
        }
        match missing.told(Duration::ZERO, now).iter().filter(|absent| absent.until > now).count() {
            0 => {}
            1 => anstream::eprintln!("note: one offering is left out that could not be had a short while ago"),
            many => anstream::eprintln!("note: {many} offerings are left out that could not be had a short while ago"),
        }
        // equal classes share one catalogue
        let mut made: Vec<Made> = Vec::new();
        let mut all = Catalogues::default();
        for name in names {
            let class = objects.classes.iter().find(|class| class.object.metadata.name.as_deref() == Some(name));
            let class = class.map(|class| &*class.object);
            if class.is_some_and(is_not_ready) {
                continue;
            }
            let mut hardware = class.map(|class| Hardware::from_class(&class.spec)).unwrap_or_default();
            let status = class.and_then(|class| class.status.as_ref());
            hardware.images = status.map(|status| status.amis.clone()).filter(|images| !images.is_empty());
            let selected = status.map(|status| status.capacity_reservations.as_slice()).unwrap_or_default();
            let reservations = offered(selected, |id| known.capacity.reservations.get(id).copied(), now);
            let zones = zones_for(class, objects);
            let is_same = |known: &&Made| {
                known.hardware == hardware && known.zones == zones && known.reservations == reservations
            };
            let same = made.iter().find(is_same).map(|same| same.catalogue.clone());
            let catalogue = same.unwrap_or_else(|| {
                let catalogue =
                    missing.apply(&self.catalogue(&hardware, &zones, (&known, &reservations)), Duration::ZERO);
                made.push(Made { hardware, zones, reservations, catalogue: catalogue.clone() });
                catalogue
            });
            all.insert(name.into(), catalogue);
        }
        all
    }

    /// Makes the catalogue of node classes that make this of types, and whose subnets are in these zones.
    pub fn catalogue(
        &self,
        hardware: &Hardware,
        zones: &[Zone],
        (known, reservations): (&Known, &[CapacityReservation]),
    ) -> Arc<Catalogue> {
        let zones = match &self.types {
            Types::Listed(catalogue) => return catalogue.clone(),
            Types::Builtin(own) if own.is_empty() => zones,
            Types::Builtin(own) => own,
        };
        let selling = Selling { prices: &known.prices, file: &self.file, reservations };
        let there = builtin().iter().filter(|facts| known.has(&facts.name, reservations));
        let made = |facts| hardware.of(facts, &known.memory, || sold(facts, zones, selling));
        Arc::new(Catalogue::new(there.filter_map(made).collect()))
    }
}

/// Says whether a controller has looked at a class and found it wanting; one that nobody has looked at may do.
fn is_not_ready(class: &Ec2NodeClass) -> bool {
    class.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, conditions::READY))
}

/// Reads a file of instance types: a JSON (or YAML) array.
///
/// # Errors
/// [`BadInput`] when the file cannot be read, or a type cannot be understood.
pub fn instance_types(file: &Path) -> Result<Vec<InstanceType>, BadInput> {
    let text = source::text(file)?;
    let origin = Origin::new(file);
    let pieces = text::split(&text, file).map_err(|fault| origin.at(fault.line).problem(fault.message))?;
    let mut types = Vec::with_capacity(pieces.len());
    let mut problems = Vec::new();
    for piece in &pieces {
        let read = piece.parse::<Listing>().map_err(|fault| (fault.line, fault.message)).and_then(|listing| {
            InstanceType::try_from(&listing).map_err(|e| (piece.line, format!("instance type {}: {e}", listing.name)))
        });
        match read {
            Ok(kind) => types.push(kind),
            Err((line, message)) => problems.push(origin.at(line).problem(message)),
        }
    }
    if types.is_empty() && problems.is_empty() {
        problems.push(origin.problem("no instance type is in it"));
    }
    if problems.is_empty() { Ok(types) } else { Err(BadInput(problems)) }
}

fn zone(name: &str) -> Zone {
    let id = DEFAULT_ZONES.iter().find(|(known, _)| *known == name).map_or("", |(_, id)| id);
    Zone::new(name, id)
}

/// The zones of a class's subnets; without them those that nodes, claims and pools name, and the usual ones where
/// they name no others.
pub fn zones_for(class: Option<&Ec2NodeClass>, objects: &Objects) -> Vec<Zone> {
    let status = class.and_then(|class| class.status.as_ref());
    let subnets = status.map(|status| status.subnets.as_slice()).unwrap_or_default();
    let mut zones: BTreeSet<Zone> =
        subnets.iter().map(|subnet| Zone::new(&subnet.zone, subnet.zone_id.as_deref().unwrap_or_default())).collect();
    if zones.is_empty() {
        let nodes = objects.nodes.iter().filter_map(|node| node.object.metadata.labels.as_ref());
        let claims = objects.claims.iter().filter_map(|claim| claim.object.metadata.labels.as_ref());
        zones.extend(nodes.chain(claims).filter_map(|labels| labels.get(labels::ZONE)).map(|name| zone(name)));
        let named = |told: &&RequirementSpec| told.key == labels::ZONE && told.operator == Operator::In;
        let asked = objects.pools.iter().flat_map(|pool| &pool.object.spec.template.spec.requirements).filter(named);
        zones.extend(asked.flat_map(|told| &told.values).map(|name| zone(name)));
    }
    // nodes in some of the usual zones, or none at all, do not mean that the others are not there
    let usual = DEFAULT_ZONES.map(|(name, id)| Zone::new(name, id));
    if subnets.is_empty() && zones.iter().all(|zone| usual.contains(zone)) {
        zones.extend(usual);
    }
    zones.into_iter().collect()
}
