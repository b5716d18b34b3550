//! What nodes have left beside daemons: by type, and by zone and capacity type for types that have a daemon in some of them only.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::amounts::{Amounts, Dims, fits, take};
use super::attach::Attach;
use super::problem::{PoolState, Way, way};
use crate::catalogue::{CapacityType, Catalogue, Market, Price, TypeSet};
use crate::cluster::{DaemonSet, Snapshot};
use crate::requirement::Requirements;
use crate::resources::Resources;
use crate::taint::Taint;

/// Zones and capacity types in which nodes are bought, not only those of a [`Market`], which has all zones for each of its capacity types:
/// bits over zones, by capacity type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cells([u64; CapacityType::ALL.len()]);

impl Cells {
    fn of(market: Market) -> Self {
        let zones = |capacity_type: CapacityType| {
            if market.capacity_types >> capacity_type as u8 & 1 == 1 { market.zones } else { 0 }
        };
        Cells(CapacityType::ALL.map(zones))
    }

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let mut all = self;
        all.0.iter_mut().zip(other.0).for_each(|(zones, others)| *zones = of(*zones, others));
        all
    }

    fn and(self, other: Self) -> Self {
        self.each(other, |zones, others| zones & others)
    }

    fn or(self, other: Self) -> Self {
        self.each(other, |zones, others| zones | others)
    }

    fn without(self, other: Self) -> Self {
        self.each(other, |zones, others| zones & !others)
    }

    fn is_empty(self) -> bool {
        self == Cells::default()
    }

    fn zones(self, capacity_type: CapacityType) -> u64 {
        self.0[capacity_type as usize]
    }

    fn contain(self, zone: usize, capacity_type: CapacityType) -> bool {
        self.zones(capacity_type) >> zone & 1 == 1
    }
}

/// A daemon set with the ways in which its pods come to be on nodes; without one they are on none.
pub(crate) struct Presence<'d> {
    pub(crate) daemon: &'d Arc<DaemonSet>,
    pub(crate) ways: Vec<Way>,
}

impl Presence<'_> {
    /// The cells in which nodes of a type have it.
    fn on(&self, at: usize) -> Cells {
        let ways = self.ways.iter().filter(|way| way.types.contains(at));
        ways.fold(Cells::default(), |cells, way| cells.or(Cells::of(way.market)))
    }
}

/// Answers where daemon sets have pods, on nodes with these taints that are made as requirements say.
pub(crate) fn presences<'d>(
    snapshot: &'d Snapshot,
    taints: &[Taint],
    requirements: &Requirements,
    (catalogue, types, market): (&Catalogue, &TypeSet, Market),
) -> Vec<Presence<'d>> {
    let bearing = snapshot.daemons.iter().filter(|daemon| daemon.bears(taints));
    bearing
        .map(|daemon| {
            let wanted = daemon.shape.alternatives.iter();
            let ways = wanted.filter_map(|wanted| way(requirements, catalogue, types, market, wanted, 0).ok());
            Presence { daemon, ways: ways.collect() }
        })
        .collect()
}

/// What a node has left beside its daemons, and what those ask for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Room {
    pub(crate) free: Amounts,
    pub(crate) daemons: Resources,
}

/// Cells in which nodes of a type have the same daemons.
#[derive(Clone, Debug)]
struct Part {
    cells: Cells,
    room: Room,
}

/// The parts of a market in which nodes of a type have the same daemons; without those in which the type cannot be had, unless that is in none.
fn parts(
    (dims, attach): (&Dims, &Attach<'_>),
    (catalogue, at): (&Catalogue, usize),
    market: Market,
    presences: &[Presence<'_>],
) -> SmallVec<[Part; 1]> {
    let mut cut: SmallVec<[(Cells, Resources); 1]> = smallvec![(Cells::of(market), Resources::new())];
    for presence in presences {
        let on = presence.on(at);
        let mut finer = SmallVec::new();
        for (cells, mut daemons) in cut {
            let (with, without) = (cells.and(on), cells.without(on));
            if with.is_empty() {
                finer.push((cells, daemons));
                continue;
            }
            if !without.is_empty() {
                finer.push((without, daemons.clone()));
            }
            daemons.add(&presence.daemon.shape.requests);
            finer.push((with, daemons));
        }
        cut = finer;
    }
    if cut.len() > 1 {
        let sold = sold(catalogue, at);
        if cut.iter().any(|(cells, _)| !cells.and(sold).is_empty()) {
            cut.retain(|(cells, _)| !cells.and(sold).is_empty());
        }
    }
    let kind = &catalogue.types()[at];
    let mut whole = dims.supply(&kind.allocatable());
    attach.set_type(dims, &mut whole, kind);
    let part = |(cells, daemons): (Cells, Resources)| {
        let mut free = whole.clone();
        take(&mut free, &dims.demand(&daemons), 1);
        Part { cells, room: Room { free, daemons } }
    };
    cut.into_iter().map(part).collect()
}

/// The cells in which a type can be had.
fn sold(catalogue: &Catalogue, at: usize) -> Cells {
    let mut cells = Cells::default();
    catalogue.offers(at).for_each(|(zone, capacity_type, _)| cells.0[capacity_type as usize] |= 1 << zone);
    cells
}

/// What is free in every one of some rooms; none of none.
fn least<'r>(mut rooms: impl Iterator<Item = &'r Amounts>) -> Option<Amounts> {
    let mut least = rooms.next()?.clone();
    for free in rooms {
        least.iter_mut().zip(free).for_each(|(least, free)| *least = (*least).min(*free));
    }
    Some(least)
}

/// Answers what a node has left beside daemons whichever of some types it will be, and wherever in a market it is bought; none of no types.
pub(crate) fn least_free(
    context: (&Dims, &Attach<'_>),
    (catalogue, types, market): (&Catalogue, &TypeSet, Market),
    presences: &[Presence<'_>],
) -> Option<Amounts> {
    let all: Vec<Part> = types.ones().flat_map(|at| parts(context, (catalogue, at), market, presences)).collect();
    least(all.iter().map(|part| &part.room.free))
}

/// The rooms of a pool's nodes.
#[derive(Default)]
pub(crate) struct Rooms {
    /// By type; of a type with parts, what is free in all of them.
    whole: Vec<Room>,
    /// By type, if its nodes differ; nothing if those of no type do.
    parts: Vec<SmallVec<[Part; 1]>>,
    /// By type, where it can be had; nothing if there are no parts.
    sold: Vec<Cells>,
    /// Where nodes are alike of every type, if they differ: markets of one capacity type each.
    alike: Vec<Market>,
}

impl Rooms {
    pub(crate) fn of(
        context: (&Dims, &Attach<'_>),
        catalogue: &Catalogue,
        market: Market,
        presences: &[Presence<'_>],
    ) -> Self {
        let mut rooms = Rooms::default();
        let all = 0..catalogue.types().len();
        for at in all.clone() {
            let mut parts = parts(context, (catalogue, at), market, presences);
            if parts.len() == 1 {
                rooms.whole.extend(parts.pop().map(|part| part.room));
            } else {
                rooms.parts.resize_with(at, SmallVec::new);
                let free = least(parts.iter().map(|part| &part.room.free)).unwrap_or_default();
                let daemons = parts.iter().fold(Resources::new(), |all, part| all.maximum(&part.room.daemons));
                rooms.whole.push(Room { free, daemons });
                rooms.parts.push(parts);
            }
        }
        if !rooms.parts.is_empty() {
            rooms.parts.resize_with(all.len(), SmallVec::new);
            rooms.sold = all.map(|at| sold(catalogue, at)).collect();
            rooms.alike = alike(market, rooms.parts.iter().flatten().map(|part| part.cells));
        }
        rooms
    }

    /// Says whether nodes of some type have other daemons in one zone, or bought in one way, than in another.
    pub(crate) fn differ(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Answers the markets in which nodes of every type are alike, where they are not anyway.
    pub(crate) fn alike(&self) -> &[Market] {
        &self.alike
    }

    fn parts(&self, at: usize) -> &[Part] {
        self.parts.get(at).map_or(&[], SmallVec::as_slice)
    }

    /// Answers the rooms that nodes of a type may have in a market; where the type cannot be had there, those that they may have elsewhere.
    pub(crate) fn each(&self, at: usize, market: Market) -> SmallVec<[&Room; 2]> {
        let parts = self.parts(at);
        if parts.is_empty() {
            return smallvec![&self.whole[at]];
        }
        let here = Cells::of(market).and(self.sold[at]);
        let of = |part: &&Part| here.is_empty() || !part.cells.and(here).is_empty();
        parts.iter().filter(of).map(|part| &part.room).collect()
    }

    /// Answers what every node of a type has left, wherever in a market it is bought.
    pub(crate) fn free(&self, at: usize, market: Market) -> Cow<'_, Amounts> {
        if self.parts(at).is_empty() {
            return Cow::Borrowed(&self.whole[at].free);
        }
        match self.each(at, market).as_slice() {
            [] => Cow::Borrowed(&self.whole[at].free),
            [one] => Cow::Borrowed(&one.free),
            several => Cow::Owned(least(several.iter().map(|room| &room.free)).unwrap_or_default()),
        }
    }

    /// Changes what is free everywhere.
    pub(crate) fn alter(&mut self, change: impl Fn(&mut Amounts)) {
        let parts = self.parts.iter_mut().flatten().map(|part| &mut part.room);
        self.whole.iter_mut().chain(parts).for_each(|room| change(&mut room.free));
    }

    /// The cells in which nodes of a type with parts hold a request beside all daemons.
    fn holding(&self, at: usize, request: &[i64]) -> Cells {
        let holds = |room: &Room| fits(&room.free, request) && room.free.iter().all(|free| *free >= 0);
        let holding = self.parts(at).iter().filter(|part| holds(&part.room));
        holding.fold(Cells::default(), |cells, part| cells.or(part.cells))
    }
}

/// Cuts a market into as few as tell cells of one set from those of another, for all these sets; nothing where it need not be cut.
fn alike(market: Market, sets: impl Iterator<Item = Cells>) -> Vec<Market> {
    let mut distinct: Vec<Cells> = Vec::new();
    for cells in sets {
        if !distinct.contains(&cells) {
            distinct.push(cells);
        }
    }
    let mut all = Vec::new();
    for capacity_type in CapacityType::ALL {
        let mut cut = vec![Cells::of(market).zones(capacity_type)];
        for cells in &distinct {
            let zones = cells.zones(capacity_type);
            cut = cut.iter().flat_map(|own| [own & zones, own & !zones]).filter(|own| *own != 0).collect();
        }
        if cut.len() > 1 {
            all.extend(cut.into_iter().map(|zones| Market { zones, capacity_types: 1 << capacity_type as u8 }));
        }
    }
    all
}

impl PoolState {
    /// Answers the price of the cheapest offering of a type, in a market, that holds a request beside its daemons.
    pub(crate) fn price_of(&self, at: usize, market: Market, request: &[i64]) -> Option<Price> {
        if self.rooms.parts(at).is_empty() {
            let holds = fits(&self.rooms.whole[at].free, request);
            return if holds { self.catalogue.cheapest(at, market) } else { None };
        }
        let holding = self.rooms.holding(at, request).and(Cells::of(market));
        let mut offers = self.catalogue.offers(at);
        offers.find(|(zone, capacity_type, _)| holding.contain(*zone, *capacity_type)).map(|(_, _, price)| price)
    }

    /// Answers the market, within another, in which a node of a type holds a request beside its daemons wherever it is bought: all of the
    /// other, if that is so, else what has the cheapest offering.
    pub(crate) fn market_of(&self, at: usize, market: Market, request: &[i64]) -> Market {
        if self.rooms.parts(at).is_empty() {
            return market;
        }
        let holding = self.rooms.holding(at, request).and(Cells::of(market));
        let sold = self.rooms.sold[at].and(Cells::of(market));
        if sold.without(holding).is_empty() {
            return market;
        }
        let mut offers = self.catalogue.offers(at);
        let cheapest = offers.find(|(zone, capacity_type, _)| holding.contain(*zone, *capacity_type));
        let Some((_, cheapest, _)) = cheapest else { return market };
        let zones = holding.zones(cheapest);
        let safe = |other: &CapacityType| sold.zones(*other) & zones & !holding.zones(*other) == 0;
        let capacity_types = CapacityType::ALL.into_iter().filter(safe).fold(0, |bits, other| bits | 1 << other as u8);
        Market { zones, capacity_types }.and(market)
    }

    /// Answers for how much a type can be had in the pool, and what is free on it then: once for each part whose nodes are alike.
    pub(crate) fn priced_rooms(&self, at: usize) -> SmallVec<[(Price, &Amounts); 2]> {
        let whole = &self.rooms.whole[at].free;
        let parts = self.rooms.parts(at);
        if parts.is_empty() {
            return self.catalogue.cheapest(at, self.market).map(|price| (price, whole)).into_iter().collect();
        }
        let price = |part: &Part| {
            let mut offers = self.catalogue.offers(at);
            offers.find(|(zone, capacity_type, _)| part.cells.contain(*zone, *capacity_type)).map(|(_, _, price)| price)
        };
        parts.iter().filter_map(|part| Some((price(part)?, &part.room.free))).collect()
    }
}
