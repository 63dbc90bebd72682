//! Items at fixed addresses, and the tensors of a graph kept in that way.

use crate::abi::GgmlTensor;

/// Items at fixed addresses: pointers to one stay valid while others are changed, which Rust's aliasing rules
/// would not allow for pointers into a box.
pub struct Fixed<T> {
    base: *mut T,
    len: usize,
}

impl<T> Fixed<T> {
    pub fn new(things: Vec<T>) -> Self {
        let len = things.len();
        Self { base: Box::into_raw(things.into_boxed_slice()).cast(), len }
    }

    /// Address of an item.
    ///
    /// # Panics
    /// If there is no such item: the capacity was computed wrongly.
    pub fn at(&self, i: usize) -> *mut T {
        assert!(i < self.len, "the graph has more tensors than were counted");
        // SAFETY: within the allocation.
        unsafe { self.base.add(i) }
    }

    /// A shared reference to an item.
    pub fn get(&self, i: usize) -> &T {
        // SAFETY: `at` is within the allocation, and whatever changes items borrows them as `&mut`.
        unsafe { &*self.at(i) }
    }

    /// A mutable reference to an item.
    pub fn get_mut(&mut self, i: usize) -> &mut T {
        // SAFETY: as in `get`, borrowed mutably.
        unsafe { &mut *self.at(i) }
    }
}

impl<T> Drop for Fixed<T> {
    fn drop(&mut self) {
        // SAFETY: created by `Box::into_raw` from a slice of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.base, self.len)) });
    }
}

/// The tensors of a graph in the order in which they were made: leaves and nodes, each after its sources.
pub struct Tensors {
    items: Fixed<GgmlTensor>,
    len: usize,
}

impl Tensors {
    /// Room for this many tensors.
    pub fn new(capacity: usize) -> Self {
        Self { items: Fixed::new(vec![GgmlTensor::EMPTY; capacity]), len: 0 }
    }

    /// Removes all tensors. Their addresses are used again.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a tensor.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn put(&mut self, tensor: GgmlTensor) -> *mut GgmlTensor {
        let place = self.len;
        *self.items.get_mut(place) = tensor;
        self.len += 1;
        self.items.at(place)
    }

    pub fn at(&self, i: usize) -> *mut GgmlTensor {
        self.items.at(i)
    }

    pub fn get(&self, i: usize) -> &GgmlTensor {
        self.items.get(i)
    }

    pub fn get_mut(&mut self, i: usize) -> &mut GgmlTensor {
        self.items.get_mut(i)
    }

    pub fn iter(&self) -> impl Iterator<Item = &GgmlTensor> {
        (0..self.len).map(|i| self.get(i))
    }

    /// The index of a tensor; `None` if it is not one of these, but a weight or a part of the cache.
    pub fn place(&self, tensor: *const GgmlTensor) -> Option<usize> {
        let bytes = (tensor as usize).checked_sub(self.items.base as usize)?;
        Some(bytes / size_of::<GgmlTensor>()).filter(|i| *i < self.len)
    }

    /// The tensor that owns the data of a tensor, which is not null.
    pub fn root(&self, tensor: *mut GgmlTensor) -> *mut GgmlTensor {
        let source = self.place(tensor).map_or(std::ptr::null_mut(), |i| self.get(i).view_src);
        if source.is_null() { tensor } else { source }
    }
}
