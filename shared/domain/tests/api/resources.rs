//! The arithmetic of resource lists: names that are absent count as zero, and lists behave as vectors over their names.

use karp_domain::quantity::Quantity;
use karp_domain::resources::Resources;
use proptest::prelude::*;

use crate::deep;

const NAMES: &[&str] =
    &["cpu", "memory", "pods", "hugepages-2Mi", "hugepages-1Gi", "nvidia.com/gpu", "example.com/device"];

fn lists(least: i64) -> impl Strategy<Value = Resources> {
    let amount = (least..5_000_i64).prop_map(Quantity::from_millis);
    prop::collection::btree_map(prop::sample::select(NAMES), amount, 0..6).prop_map(|all| all.into_iter().collect())
}

fn same(a: &Resources, b: &Resources) -> bool {
    NAMES.iter().all(|name| a.get(name) == b.get(name))
}

proptest! {
    #![proptest_config(deep::cases(400))]

    #[test]
    fn lists_add_as_vectors(a in lists(-5_000), b in lists(-5_000), c in lists(-5_000)) {
        prop_assert!(same(&a.plus(&b), &b.plus(&a)));
        prop_assert!(same(&a.plus(&b).plus(&c), &a.plus(&b.plus(&c))));
        prop_assert!(same(&a.plus(&b).minus(&b), &a));
        prop_assert!(same(&a.plus(&Resources::new()), &a));
        prop_assert!(same(&a.minus(&a), &Resources::new()));
    }

    #[test]
    fn the_larger_of_two_is_their_least_upper_bound(a in lists(0), b in lists(0), c in lists(0)) {
        let top = a.maximum(&b);
        prop_assert!(same(&top, &b.maximum(&a)) && same(&top.maximum(&c), &a.maximum(&b.maximum(&c))) && same(&a.maximum(&a), &a));
        prop_assert!(a.fits(&top) && b.fits(&top));
        if a.fits(&c) && b.fits(&c) {
            prop_assert!(top.fits(&c));
        }
        prop_assert!(top.fits(&a.plus(&b)));
    }

    #[test]
    fn what_fits_leaves_no_shortage_and_nothing_negative(wanted in lists(0), there in lists(-500)) {
        prop_assert_eq!(wanted.fits(&there), wanted.shortage(&there).is_none());
        let left = there.minus(&wanted);
        prop_assert_eq!(wanted.fits(&there), NAMES.iter().all(|name| !left.get(name).is_negative()));
        if let Some(shortage) = wanted.shortage(&there) {
            prop_assert!(shortage.available < shortage.wanted || shortage.available.is_negative());
            prop_assert_eq!(shortage.available, there.get(&shortage.resource));
        }
    }

    #[test]
    fn less_fits_wherever_more_does(a in lists(0), b in lists(0), there in lists(0)) {
        if a.plus(&b).fits(&there) {
            prop_assert!(a.fits(&there) && b.fits(&there) && b.fits(&there.minus(&a)));
        }
    }

    #[test]
    fn the_api_form_says_the_same(a in lists(-5_000)) {
        prop_assert_eq!(Resources::try_from_api(&a.to_api()), Ok(a));
    }
}
