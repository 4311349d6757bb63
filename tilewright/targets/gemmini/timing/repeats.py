"""Jumps over whole periods of a stream, exactly, where the state of all units recurs.

Three equal snapshots (`snapshot`), equally far apart, make a period. The state after more periods
is known if the next commands move on in the same steps. Meanwhile addresses must keep their banks
and alignment, and cross pages as before. Rows of nearby commands must overlap as before. Each of
these bounds the number of periods, or forbids the jump.

The registers of all units are `s` (STATE_WORDS,), the stream's commands `c` (COMMAND_ROWS, n).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.isa import (
    CONFIG,
    CONFIG_LD,
    CONFIG_ST,
    FENCE,
    FLUSH,
    MVOUT,
    PRELOAD,
    SCALE_ONE,
    bits,
    in_accumulator,
    is_compute,
    is_garbage,
    is_mvin,
    load_state,
    local_address,
    move_columns,
    rows,
)
from tilewright.targets.gemmini.loop_commands import (
    IS_RESADD,
    LOOP_SETTINGS,
    MAX_I,
    MOST_BLOCKS,
)
from tilewright.targets.gemmini.spec import DIM, GemminiMachine
from tilewright.targets.gemmini.timing.commands import (
    ACCEPT,
    COMMAND_ROWS,
    FUNCT,
    RS1,
    RS2,
    Commands,
)
from tilewright.targets.gemmini.timing.reader import ROW_MASK
from tilewright.targets.gemmini.timing.snapshot import (
    ADDRESSES,
    AT,
    COMMANDS,
    COUNTERS,
    HASH,
    MADE,
    MOST_RANGES,
    NEXT,
    OLDEST,
    ROW_BYTES,
    SNAPSHOTS,
    VALUES,
    Snapshots,
)
from tilewright.targets.gemmini.timing.state import (
    COUNT,
    GEN_A,
    GEN_B,
    GEN_C,
    GEN_D,
    GEN_EX,
    GENERATORS,
    LD_STRIDE,
    LG_I,
    LG_J,
    LG_K,
    LG_LOOP,
    LG_STATE,
    LW_CONFIGURED,
    LW_LOOPS,
    MEMORY_ENTRIES,
    MEMORY_Q,
    MESH_LINE,
    NEXT_COMMAND,
    NOW,
    PROGRESS_AT,
    ST_STRIDE,
    STATION_A_STRIDE,
    STATION_BLOCK_STRIDE,
    STATION_C_STRIDE,
    TRUE_SINCE,
    WAIT_UNTIL,
    UnitState,
    entry_at,
)
from tilewright.targets.gemmini.timing.translation import PAGE_BITS

PAGE = 1 << PAGE_BITS
MANY = 1 << 40
SETTLED_COMMANDS = 8
"""Commands that left the reservation station, but whose rows may still be on their way."""
OVERTAKES = 3
"""Commands of one DMA unit whose requests may change places."""
FEWEST_CYCLES = 256
"""Shorter jumps are not worth their checks."""
IDLE = 0


@stage
def can_repeat(c: Commands, end: int) -> bool:
    """Whether a stream has nothing that snapshots leave out: scaled loads, repeated pixels,
    pools and grids."""
    for n in range(end):
        if c[FUNCT, n] != CONFIG:
            continue
        unit = bits(c[RS1, n], 0, 2)
        scaled = bits(c[RS1, n], 32, 32) != SCALE_ONE or bits(c[RS1, n], 8, 5) > 1
        if unit == CONFIG_LD and scaled:
            return False
        if unit == CONFIG_ST and bits(c[RS1, n], 4, 4) != 0:
            return False
    return True


@stage
def is_marker(c: Commands, n: int) -> bool:
    """Whether a snapshot is taken behind a command: a move, or a product with new weights."""
    funct = c[FUNCT, n]
    return is_mvin(funct) or funct == MVOUT or (
        funct == PRELOAD and local_address(c[RS1, n]) != 0xFFFFFFFF
    )  # fmt: skip


@stage
def same_snapshot(p: Snapshots, one: int, two: int) -> bool:
    """Whether two snapshots are equal but for their addresses."""
    n = p.header[one, VALUES]
    if p.header[one, HASH] != p.header[two, HASH] or n != p.header[two, VALUES]:
        return False
    if p.header[one, ADDRESSES] != p.header[two, ADDRESSES]:
        return False
    k = 0
    while k < n and p.values[one, k] == p.values[two, k]:
        k += 1
    return k == n


@stage
def try_jump(
    s: UnitState, m: GemminiMachine, c: Commands, p: Snapshots, last: int, end: int
) -> int:
    """Jump as far as the last snapshot allows; cycles jumped over, 0 without a jump, -1 if a
    period was found that cannot be used."""
    b = last % SNAPSHOTS
    found = False
    for back in range(1, SNAPSHOTS // 2):
        if back > last:
            break
        a = (last - back) % SNAPSHOTS
        if p.header[a, HASH] != p.header[b, HASH] or not same_snapshot(p, a, b):
            continue
        cycles = p.header[b, AT] - p.header[a, AT]
        for more in range(back + 1, SNAPSHOTS):
            if more > last:
                break
            first = (last - more) % SNAPSHOTS
            if p.header[a, AT] - p.header[first, AT] < cycles:
                continue
            if p.header[a, AT] - p.header[first, AT] > cycles:
                break
            if not same_snapshot(p, first, a):
                break
            found = True
            most = periods(s, m, c, p, (first, a, b), end)
            if most * cycles >= FEWEST_CYCLES:
                jump(s, c, p, a, b, most, end)
                return most * cycles
            break
    return -1 if found else 0


@stage
def periods(
    s: UnitState, m: GemminiMachine, c: Commands, p: Snapshots, at: tuple[int, int, int], end: int
) -> int:
    """How many periods the state is known to move on in the same steps."""
    first, a, b = at
    plain, made = p.header[b, NEXT] - p.header[a, NEXT], p.header[b, MADE] - p.header[a, MADE]
    if plain != p.header[a, NEXT] - p.header[first, NEXT]:
        return 0
    if made != p.header[a, MADE] - p.header[first, MADE] or (plain > 0) == (made > 0):
        return 0
    for k in range(p.header[b, ADDRESSES]):
        step = p.addresses[b, k] - p.addresses[a, k]
        if step != p.addresses[a, k] - p.addresses[first, k]:
            return 0
    period = plain + made
    until = p.header[b, NEXT] if plain > 0 else p.header[b, MADE]
    since = min(p.header[a, OLDEST], until - period) - SETTLED_COMMANDS
    floor = 0 if plain > 0 else max(end, s[TRUE_SINCE])
    since = max(since, floor)
    if since - period < floor:
        return 0
    most = MANY
    if made > 0:
        most = generator_periods(s, p, first, a, b)
    else:
        if s[LW_CONFIGURED] + s[LW_CONFIGURED + 1] > 0:
            return 0
        most = stream_periods(c, since, period, until, end)
    if most == 0:
        return 0
    for n in range(since, until):
        if not steps_alike(m, c, n - period, n):
            return 0
    most = memory_periods(s, c, since, until, period, most)
    return local_periods(s, m, c, p, since, until, period, most) if most > 0 else 0


@stage
def steps_alike(m: GemminiMachine, c: Commands, one: int, two: int) -> bool:
    """Whether two commands differ in nothing but their addresses."""
    funct = c[FUNCT, one]
    if funct != c[FUNCT, two]:
        return False
    if is_mvin(funct) or funct == MVOUT:
        x, y = c[RS1, one], c[RS1, two]
        if (x - y) % ROW_BYTES != 0 or (x == 0) != (y == 0):
            return False
        return same_operand(m, c[RS2, one], c[RS2, two])
    if funct == PRELOAD or is_compute(funct):
        return same_operand(m, c[RS1, one], c[RS1, two]) and same_operand(
            m, c[RS2, one], c[RS2, two]
        )
    return c[RS1, one] == c[RS1, two] and c[RS2, one] == c[RS2, two]


@stage
def same_operand(m: GemminiMachine, one: int, two: int) -> bool:
    """Whether two operands differ in nothing but their rows."""
    if is_garbage(m, local_address(one)) or is_garbage(m, local_address(two)):
        return one == two
    return (one & ~m.address_mask) == (two & ~m.address_mask)


@stage
def stream_periods(c: Commands, since: int, period: int, until: int, end: int) -> int:
    """For how many periods the coming commands of a stream move on in the steps of the last."""
    n = since
    while n + period < end:
        for row in (RS1, RS2):
            if c[row, n + period] - c[row, n] != c[row, n] - c[row, n - period]:
                return max((n + period - until) // period, 0)
        if c[FUNCT, n + period] != c[FUNCT, n] or c[FUNCT, n] == FENCE or c[FUNCT, n] == FLUSH:
            return max((n + period - until) // period, 0)
        n += 1
    return max((end - 1 - until) // period, 0)


@stage
def generator_periods(s: UnitState, p: Snapshots, first: int, a: int, b: int) -> int:
    """For how many periods the generators of loops move on in the steps of the last."""
    most = MANY
    for generator in range(GENERATORS):
        moving = 0
        for counter in range(3):
            k = COUNTERS + counter * GENERATORS + generator
            step = p.header[b, k] - p.header[a, k]
            if step != p.header[a, k] - p.header[first, k] or step < 0:
                return 0
            if step == 0:
                continue
            moving += 1
            at = LW_LOOPS + s[LG_LOOP + generator] * LOOP_SETTINGS
            # The first and the last blocks of a row are other commands.
            edge = 2 if generator == GEN_EX else 1 + MOST_BLOCKS
            room = s[at + MAX_I + counter] - edge - p.header[b, k]
            if p.header[first, k] == 0 or room < step or s[at + IS_RESADD]:
                return 0
            most = min(most, room // step)
        if moving > 1 or (moving == 1 and s[LG_STATE + generator] == IDLE):
            return 0
    if most == MANY or not generators_in_step(s, p, a, b):
        return 0
    return most


@stage
def counter_step(p: Snapshots, a: int, b: int, counter: int, generator: int) -> int:
    """Blocks that a counter of a generator moves on by in a period."""
    k = COUNTERS + (counter - LG_I) + generator
    return p.header[b, k] - p.header[a, k]


@stage
def generators_in_step(s: UnitState, p: Snapshots, a: int, b: int) -> bool:
    """Whether generators that wait for each other's positions move on by equal steps."""
    ex_i, ex_j = counter_step(p, a, b, LG_I, GEN_EX), counter_step(p, a, b, LG_J, GEN_EX)
    ex_k = counter_step(p, a, b, LG_K, GEN_EX)
    for other in (GEN_A, GEN_B, GEN_D, GEN_C):
        same_loop = s[LG_LOOP + other] == s[LG_LOOP + GEN_EX]
        if s[LG_STATE + other] == IDLE or s[LG_STATE + GEN_EX] == IDLE or not same_loop:
            continue
        i, j = counter_step(p, a, b, LG_I, other), counter_step(p, a, b, LG_J, other)
        if ex_i + ex_j + i + j > 0 or (
            other != GEN_C and counter_step(p, a, b, LG_K, other) != ex_k
        ):
            return False
    if s[LG_STATE + GEN_A] == IDLE or s[LG_STATE + GEN_B] == IDLE:
        return True
    return counter_step(p, a, b, LG_K, GEN_A) == counter_step(p, a, b, LG_K, GEN_B)


@stage
def memory_periods(
    s: UnitState, c: Commands, since: int, until: int, period: int, most: int
) -> int:
    """For how many periods requests cross pages as they do in the last."""
    for n in range(since, until):
        if not moves_memory(c, n):
            continue
        step = c[RS1, n] - c[RS1, n - period]
        if step < 0 and c[RS1, n] + most * step <= 0:
            return 0
        if step % PAGE == 0:
            continue
        stride = row_stride(s, c, n)
        for row in range(rows(c[RS2, n])):
            at = (c[RS1, n] + row * stride) % PAGE
            room = PAGE - 2 * ROW_BYTES - at if step > 0 else at
            if room < 0:
                return 0
            most = min(most, room // abs(step))
    if most == 0:
        return 0
    for n in range(since, until):
        if not moves_memory(c, n):
            continue
        left, k = OVERTAKES, n - 1
        while k >= since and left > 0:
            if moves_memory(c, k) and (c[FUNCT, k] == MVOUT) == (c[FUNCT, n] == MVOUT):
                left -= 1
                if not pages_part(s, c, k, n, period, most):
                    return 0
            k -= 1
    return most


@stage
def moves_memory(c: Commands, n: int) -> bool:
    """Whether a command reads or writes memory."""
    return (is_mvin(c[FUNCT, n]) or c[FUNCT, n] == MVOUT) and c[RS1, n] != 0


@stage
def row_stride(s: UnitState, c: Commands, n: int) -> int:
    """Bytes between rows of a command."""
    if c[FUNCT, n] == MVOUT:
        return s[ST_STRIDE]
    return s[LD_STRIDE + load_state(c[FUNCT, n])]


@stage
def pages_part(s: UnitState, c: Commands, one: int, two: int, period: int, most: int) -> bool:
    """Whether two commands are on the same pages in all periods or in none."""
    one_step, two_step = c[RS1, one] - c[RS1, one - period], c[RS1, two] - c[RS1, two - period]
    if one_step // PAGE == two_step // PAGE and (one_step % PAGE == 0) == (two_step % PAGE == 0):
        return True
    one_last = c[RS1, one] + rows(c[RS2, one]) * row_stride(s, c, one) + ROW_BYTES
    two_last = c[RS1, two] + rows(c[RS2, two]) * row_stride(s, c, two) + ROW_BYTES
    return is_apart(c[RS1, one], one_last, one_step, c[RS1, two], two_last, two_step, most, PAGE)


@stage
def is_apart(
    first: int, last: int, step: int, other_first: int, other_last: int, other_step: int,
    most: int, margin: int,
) -> bool:  # fmt: skip
    """Whether two ranges keep a distance, on the same sides, now and after `most` periods."""
    if last + margin <= other_first:
        return last + most * step + margin <= other_first + most * other_step
    if other_last + margin <= first:
        return other_last + most * other_step + margin <= first + most * step
    return False


@stage
def local_periods(
    s: UnitState, m: GemminiMachine, c: Commands, p: Snapshots, since: int, until: int,
    period: int, most: int,
) -> int:  # fmt: skip
    """For how many periods commands use the same banks, and overlap as they do in the last."""
    count, moving = 0, False
    for n in range(since, until):
        funct = c[FUNCT, n]
        if funct == CONFIG or count + 2 > MOST_RANGES:
            return 0
        if is_mvin(funct) or funct == MVOUT:
            blocks = (move_columns(c[RS2, n]) + DIM - 1) // DIM
            apart = DIM if funct == MVOUT else s[STATION_BLOCK_STRIDE + load_state(funct)]
            length = (blocks - 1) * apart + rows(c[RS2, n])
            count += put_range(m, c, p, count, RS2, n, period, length)
        elif funct == PRELOAD:
            length = max(DIM * s[STATION_C_STRIDE], DIM)
            count += put_range(m, c, p, count, RS2, n, period, length)
            count += put_range(m, c, p, count, RS1, n, period, DIM)
        elif is_compute(funct):
            length = max(DIM * s[STATION_A_STRIDE], DIM)
            count += put_range(m, c, p, count, RS1, n, period, length)
            count += put_range(m, c, p, count, RS2, n, period, DIM)
    for k in range(count):
        step = p.ranges[k, 3]
        if step == 0:
            continue
        moving = True
        bank = m.accumulator_bank_bits if p.ranges[k, 0] else m.scratchpad_bank_bits
        first, last = p.ranges[k, 1], p.ranges[k, 2]
        if first >> bank != last >> bank:
            return 0
        room = (first >> bank) + 1 << bank
        room = room - 1 - last if step > 0 else first - (first >> bank << bank)
        most = min(most, room // abs(step))
    if not moving or most == 0:
        return most
    if m.scratchpad_rows - 1 > ROW_MASK:
        return 0
    for k in range(count):
        for other in range(k):
            if p.ranges[k, 3] == p.ranges[other, 3] or p.ranges[k, 0] != p.ranges[other, 0]:
                continue
            if not is_apart(
                p.ranges[k, 1], p.ranges[k, 2], p.ranges[k, 3], p.ranges[other, 1],
                p.ranges[other, 2], p.ranges[other, 3], most, 1,
            ):  # fmt: skip
                return 0
    return most


@stage
def put_range(
    m: GemminiMachine, c: Commands, p: Snapshots, count: int, row: int, n: int, period: int,
    length: int,
) -> int:  # fmt: skip
    """Append the local rows of an operand; 1 if it has any."""
    address = local_address(c[row, n])
    if is_garbage(m, address):
        return 0
    memory = 1 if in_accumulator(address) else 0
    size = m.accumulator_rows if memory else m.scratchpad_rows
    first = address & m.address_mask & (size - 1)
    last = first + length - 1
    if last >= size:
        first, last = 0, size - 1
    p.ranges[count, 0], p.ranges[count, 1], p.ranges[count, 2] = memory, first, last
    p.ranges[count, 3] = c[row, n] - c[row, n - period]
    return 1


@stage
def jump(s: UnitState, c: Commands, p: Snapshots, a: int, b: int, most: int, end: int) -> None:
    """Move the state on by `most` periods, and write the times of the commands in between."""
    cycles = (p.header[b, AT] - p.header[a, AT]) * most
    plain = p.header[b, NEXT] - p.header[a, NEXT]
    made = p.header[b, MADE] - p.header[a, MADE]
    for k in range(p.header[b, ADDRESSES]):
        s[p.positions[0, k]] += most * (p.addresses[b, k] - p.addresses[a, k])
    if plain > 0:
        repeat_times(s, c, p, a, b, most)
        for k in range(p.header[b, COMMANDS]):
            s[p.positions[1, k]] += most * plain
        s[NEXT_COMMAND] += most * plain
    else:
        # What is under way stands where loops put it; only its addresses move on.
        n = p.header[b, MADE] - 1
        since = max(min(p.header[b, OLDEST], n), end + made)
        while n >= since:
            for row in (RS1, RS2):
                c[row, n] += most * (c[row, n] - c[row, n - made])
            n -= 1
        s[TRUE_SINCE] = since
        for counter in range(3 * GENERATORS):
            step = p.header[b, COUNTERS + counter] - p.header[a, COUNTERS + counter]
            s[LG_I + counter] += most * step
    for k in range(s[MEMORY_Q + COUNT]):
        s[entry_at(s, MEMORY_Q, MEMORY_ENTRIES, 3, k) + 2] += cycles
    if s[WAIT_UNTIL] > s[NOW]:
        s[WAIT_UNTIL] += cycles
    s[PROGRESS_AT] += cycles
    line = p.positions[0]
    for cycle in range(64):
        line[cycle] = s[MESH_LINE + cycle]
    for cycle in range(64):
        s[MESH_LINE + (cycle + cycles & 63)] = line[cycle]
    s[NOW] += cycles


@stage
def repeat_times(s: UnitState, c: Commands, p: Snapshots, a: int, b: int, most: int) -> None:
    """Write the times of the periods jumped over: those of the last one, moved on."""
    cycles = p.header[b, AT] - p.header[a, AT]
    period = p.header[b, NEXT] - p.header[a, NEXT]
    since = min(p.header[a, OLDEST], p.header[a, NEXT])
    for event in range(ACCEPT, COMMAND_ROWS):
        for n in range(since, p.header[b, NEXT]):
            at = c[event, n]
            if at < p.header[a, AT] or at >= p.header[b, AT]:
                continue
            for k in range(1, most + 1):
                c[event, n + k * period] = at + k * cycles
