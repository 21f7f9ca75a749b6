"""Two blocks of a cluster that exchange data through global memory, one wave after the other."""

from __future__ import annotations

import tilewright as tw

ROWS, THREADS = 32, (4, 32)


@tw.kernel(X="M N", Y="M N")
def mailbox(X, Y):
    """``Y = X + number of the wave``, through the other block: each block adds 1 to the other's value."""
    block = tw.block_index((2 * tw.ceil_div(X.shape[0], 2 * ROWS), 1))[0]
    rank = tw.hopper.cluster_index((2, 1))[0]
    box = tw.workspace((2 * tw.ceil_div(X.shape[0], 2 * ROWS), ROWS, 128), X.dtype)
    written = tw.hopper.mbarrier(1, arrivals=4)
    tw.hopper.cluster_barrier()
    x = tw.load(X.tile((ROWS, 128), (block, 0)).partition(THREADS))
    for wave in tw.range(8):
        tw.copy(x + 1.0, box[block])
        tw.hopper.arrive(written[0], each="warp", block=1 - rank)
        tw.hopper.wait(written[0], wave % 2)
        x.assign(tw.load(box[block + 1 - 2 * rank].partition(THREADS)))
        tw.hopper.cluster_barrier()
    tw.copy(x, Y.tile((ROWS, 128), (block, 0)))
    tw.hopper.cluster_barrier()
