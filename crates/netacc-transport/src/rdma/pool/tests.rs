use super::*;
use crate::rdma::credits::FIRST;

const K: usize = 1024;
const USUAL: Sizes = Sizes { message: 16 * K, first: 16 * K, largest: 8 * K * K };

/// The sizes of the regions for `pairs` queue pairs, made one after the other, and one buffer to send from.
fn regions(sizes: Sizes, pairs: usize) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    for pair in 1..=pairs {
        let need = (pair * usize::from(FIRST) + 1) * sizes.message;
        while let total = found.iter().sum::<usize>()
            && total < need
        {
            found.push(next_region(sizes, total, found.iter().copied().max(), need - total));
        }
    }
    found
}

#[test]
fn one_queue_pair_has_what_it_needs_and_each_region_is_for_as_many_as_there_were() {
    assert_eq!(regions(USUAL, 1), [16 * K, 32 * K, 32 * K]);
    for (pairs, calls, room) in [(2, 4, 2), (3, 5, 4), (4, 5, 4), (5, 6, 8), (8, 6, 8), (9, 7, 12), (13, 8, 16)] {
        let found = regions(USUAL, pairs);
        assert_eq!((found.len(), found.iter().sum::<usize>()), (calls, (room * 64 + 16) * K), "{pairs}");
    }
}

#[test]
fn many_queue_pairs_have_few_regions_and_little_to_spare() {
    let many = regions(USUAL, 1000);
    assert!(many.len() < 100, "{} regions", many.len());
    assert!(many.iter().sum::<usize>() <= 1000 * 64 * K * 9 / 8, "{many:?}");
    let few = regions(Sizes { largest: K * K, ..USUAL }, 1000);
    assert_eq!(few.iter().max(), Some(&(K * K)));
}

#[test]
fn a_region_is_at_most_twice_the_largest_before() {
    assert_eq!(next_region(USUAL, 16 * K, Some(16 * K), 1024 * K), 32 * K);
    assert_eq!(next_region(USUAL, 48 * K, Some(32 * K), 1024 * K), 64 * K);
}

#[test]
fn messages_that_stay_leave_large_buffers_and_others_to_send_from() {
    let mut pool = Pool::empty(None, USUAL);
    while pool.sending < SENDING && pool.may_keep(0) {
        pool.sending += 1;
    }
    assert_eq!(pool.sending, STAYING + 1);
    assert!(pool.take_to_send(64 * K).is_none(), "nothing is registered");
    assert!(pool.short_of_large, "but is to be");
}

#[test]
fn every_region_holds_a_buffer() {
    for message in [1024, 16 * K, 16 * K * K] {
        let sizes = Sizes { message, first: message, largest: message };
        assert_eq!(regions(sizes, 1), vec![message; usize::from(FIRST) + 1]);
    }
}
