"""Devices: batches as global arrays of JAX. Each process makes the parts that its devices hold.

Batches take four steps:

1. `placement` asks the shardings which rows of a batch the addressable devices hold. A sharding cuts the
   batch axis into equal parts, so these rows are some of `n` equal parts, and the chain that runs takes
   those parts (`transforms.nodes.shard`) and reads nothing for others. Shapes are checked here,
   from the spec of the chain.
2. The engine makes the rows, ahead of the loop, as for a plain iterator.
3. `arrays` makes a global array of each leaf: it cuts the rows into the pieces of the devices (axis 0 by
   views, other axes after whole samples were read), and hands each piece to JAX, which takes aligned
   memory as it is on CPU devices.
4. `delivery` does step 3 on a thread of its own, a few batches ahead and within a budget of bytes.

An iterator is the same `DatasetIterator` as without devices: only the blocks that it takes from the engine
pass through a delivery. So its position, and all that follows from it, belongs to the batch given last.

Processes exchange nothing, except where a stream may end at another batch in each of them: `agreement`
then lets them end together.

Invariant: the shards of a global array, put together, are the batch of the plain iterator, bit for bit.
"""
