//! A table of numbered objects, in which a number is never confused with that of an earlier object in the same place.

use alloc::vec::Vec;

/// Places of a table with their generations.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Enters a thing; `None` if there are `limit` already.
    pub fn add(&mut self, limit: usize, thing: T) -> Option<usize> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.places.len() < limit => {
                self.places.push((0, None));
                self.places.len() - 1
            }
            None => return None,
        };
        let (generation, place) = self.places.get_mut(at)?;
        *generation = generation.wrapping_add(1);
        *place = Some(thing);
        Some(at)
    }

    /// Number of places: as many as there have been things at a time.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The thing at a place.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.places.get(at)?.1.as_ref()
    }

    /// The thing at a place, to change it.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.places.get_mut(at)?.1.as_mut()
    }

    /// All things with their places, to change them.
    pub fn each_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.places.iter_mut().enumerate().filter_map(|(at, (_, thing))| Some((at, thing.as_mut()?)))
    }

    /// The generation of a place, which tells its uses apart.
    pub fn generation(&self, at: usize) -> u32 {
        self.places.get(at).map_or(0, |(generation, _)| *generation)
    }

    /// Takes a thing out; its number is free.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        let thing = self.places.get_mut(at)?.1.take();
        if thing.is_some() {
            self.free.push(at);
        }
        thing
    }

    /// All that are there, with their numbers.
    pub fn each(&self) -> impl Iterator<Item = (usize, &T)> {
        self.places.iter().enumerate().filter_map(|(at, (_, thing))| Some((at, thing.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_used_again_has_another_generation() {
        let mut t = Table::default();
        let a = t.add(2, 'a').unwrap();
        let before = t.generation(a);
        assert_eq!(t.remove(a), Some('a'));
        assert_eq!((t.remove(a), t.get(a)), (None, None));
        assert_eq!(t.add(2, 'b'), Some(a));
        assert_ne!(t.generation(a), before);
        assert_eq!(t.add(2, 'c'), Some(1));
        assert_eq!(t.add(2, 'd'), None);
        assert_eq!(t.each().map(|(_, c)| *c).collect::<Vec<_>>(), ['b', 'c']);
    }
}
