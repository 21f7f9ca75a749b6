"""Vector instructions on integers and bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tilewright.amdgcn.steps import OpcodeRow, Partly, chosen, field_of, left, right, row, tracked, upward

U64 = np.uint64


def carry(a: Any, b: Any, more: Any = None) -> tuple[Any, Any]:
    """Return a sum of u32 and a carry, and whether it overflows."""
    total = a.astype(U64) + b.astype(U64) + (U64(0) if more is None else more.astype(U64))
    return total.astype(np.uint32), total > U64(0xFFFFFFFF)


def borrow(a: Any, b: Any, more: Any = None) -> tuple[Any, Any]:
    """Return a difference of u32 and a borrow, and whether it is negative."""
    exact = a.astype(np.int64) - b.astype(np.int64) - (0 if more is None else more.astype(np.int64))
    return exact.astype(np.uint32), exact < 0


def _low24(value: Any) -> Any:
    wide = value.astype(np.int64)
    return (wide & 0xFFFFFF) - ((wide & 0x800000) << 1) if value.dtype.kind == "i" else wide & 0xFFFFFF


def _mad_wide(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    if a.dtype.kind == "i":
        total = a.astype(np.int64) * b.astype(np.int64) + c
        return total, np.zeros(total.shape, np.bool_)
    product = a.astype(U64) * b.astype(U64)
    total = product + c
    return total, total < product


def _wide_sum(values: Sequence[Any], shadows: Sequence[Any]) -> tuple[Any, Any]:
    """Return the undefined bits of a 64-bit sum, from an operand's lowest one upwards, and of its carry."""
    unknown = reduce(np.bitwise_or, (shadow.astype(U64) for shadow in shadows if shadow is not None))
    return ~unknown + U64(1) | unknown, unknown != 0


def _perm(a: Any, b: Any, select: Any) -> Any:
    """``v_perm``: select bytes 0 to 3 of `b`, 4 to 7 of `a`, signs of halves (8 to 11), 0 (12) or 255."""
    both = b.astype(U64) | (a.astype(U64) << U64(32))
    result = np.zeros(np.broadcast_shapes(both.shape, select.shape), np.uint32)
    for place in range(4):
        which = (select >> np.uint32(8 * place)) & np.uint32(255)
        byte = (both >> (np.minimum(which, 7).astype(U64) * U64(8))) & U64(255)
        sign = (both >> (((which.astype(U64) & U64(3)) * U64(16)) + U64(15))) & U64(1)
        byte = np.where((which >= 8) & (which < 12), sign * U64(255), byte)
        byte = np.where(which == 12, 0, np.where(which > 12, 255, byte))
        result |= (byte.astype(np.uint32) << np.uint32(8 * place)).astype(np.uint32)
    return result


def _align(a: Any, b: Any, bits: Any) -> Any:
    return (((a.astype(U64) << U64(32)) | b.astype(U64)) >> bits.astype(U64)).astype(np.uint32)


def leading(value: Any) -> Any:
    """Count leading zeros; a word without a 1 gives all ones."""
    exponent = np.frexp(value.astype(np.float64))[1]
    width = value.dtype.itemsize * 8
    wrong = (exponent > 0) & ((value >> np.maximum(exponent - 1, 0).astype(value.dtype)) == 0)
    return np.where(value == 0, 0xFFFFFFFF, width - (exponent - wrong)).astype(np.uint32)


def leading_signs(value: Any) -> Any:
    """Count the leading bits that equal the sign; a word of only such bits gives all ones."""
    return leading(np.where(value < 0, ~value, value).astype(np.uint32))


def trailing(value: Any) -> Any:
    """Count trailing zeros; a word without a 1 gives all ones."""
    lowest = value & (~value + value.dtype.type(1))
    return np.where(value == 0, 0xFFFFFFFF, value.dtype.itemsize * 8 - 1 - leading(lowest)).astype(np.uint32)


def reversed_bits(value: Any) -> Any:
    """Return the bits of words in reversed order."""
    octets = np.ascontiguousarray(value).view(np.uint8).reshape(*value.shape, value.dtype.itemsize)
    packed = np.packbits(np.unpackbits(octets, axis=-1)[..., ::-1], axis=-1)
    return packed.view(value.dtype).reshape(value.shape)


def mask_bits(count: Any, first: Any, width: int = 32) -> Any:
    """Return words with `count` ones from bit `first` on."""
    ones = (U64(1) << (count.astype(U64) & U64(width - 1))) - U64(1)
    return (ones << (first.astype(U64) & U64(width - 1))).astype(f"u{width // 8}")


_LOGIC: dict[str, Any] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "xnor": lambda a, b: ~(a ^ b),
}
_THREE: dict[str, Any] = {
    "and_or": lambda a, b, c: (a & b) | c,
    "or3": lambda a, b, c: a | b | c,
    "xor3": lambda a, b, c: a ^ b ^ c,
    "bfi": lambda mask, a, b: (mask & a) | (~mask & b),
}
_MOVED = tracked(lambda a: a)
_SUM = tracked(upward)
_SUM_OF_24_BITS = tracked(lambda a, b, *more: upward(a.lower(24), b.lower(24), *more))
_SAME = tracked(lambda a, b: a.moved(right, b))


def _rows() -> dict[str, OpcodeRow]:
    rows: dict[str, OpcodeRow] = {
        "v_mov_b32": row("u32 = u32", lambda a: a, _MOVED),
        "v_mov_b16": row("u16 = u16", lambda a: a, _MOVED, keeps=True),
        "v_mov_b64": row("u64 = u64", lambda a: a, _MOVED),
        "v_accvgpr_write_b32": row("u32 = u32", lambda a: a, _MOVED),
        "v_accvgpr_read_b32": row("u32 = u32", lambda a: a, _MOVED),
        "v_accvgpr_mov_b32": row("u32 = u32", lambda a: a, _MOVED),
        "v_not_b32": row("u32 = u32", np.invert, _MOVED),
        "v_not_b16": row("u16 = u16", np.invert, _MOVED),
        "v_bfrev_b32": row("u32 = u32", reversed_bits),
        "v_ffbh_u32": row("u32 = u32", leading),
        "v_clz_i32_u32": row("u32 = u32", leading),
        "v_ffbh_i32": row("u32 = i32", leading_signs),
        "v_cls_i32": row("u32 = i32", leading_signs),
        "v_ffbl_b32": row("u32 = u32", trailing),
        "v_ctz_i32_b32": row("u32 = u32", trailing),
        "v_bcnt_u32_b32": row(
            "u32 = u32 u32",
            lambda value, more: (np.bitwise_count(value).astype(np.uint32) + more).astype(np.uint32),
        ),
        "v_cndmask_b32": row("u32 = u32 u32 mask", lambda a, b, m: np.where(m, b, a), tracked(chosen)),
        "v_cndmask_b16": row("u16 = u16 u16 mask", lambda a, b, m: np.where(m, b, a), tracked(chosen)),
        "v_add_co_u32": row("u32 mask = u32 u32", carry),
        "v_sub_co_u32": row("u32 mask = u32 u32", borrow),
        "v_subrev_co_u32": row("u32 mask = u32 u32", lambda a, b: borrow(b, a)),
        "v_addc_co_u32": row("u32 mask = u32 u32 mask", carry),
        "v_subb_co_u32": row("u32 mask = u32 u32 mask", borrow),
        "v_subbrev_co_u32": row("u32 mask = u32 u32 mask", lambda a, b, m: borrow(b, a, m)),
        "v_add_u32": row("u32 = u32 u32", np.add, track=_SUM),
        "v_sub_u32": row("u32 = u32 u32", np.subtract, track=_SUM),
        "v_subrev_u32": row("u32 = u32 u32", lambda a, b: b - a, track=_SUM),
        "v_add3_u32": row("u32 = u32 u32 u32", lambda a, b, c: a + b + c, track=_SUM),
        "v_add_lshl_u32": row(
            "u32 = u32 u32 u32",
            lambda a, b, c: left(a + b, c),
            tracked(lambda a, b, c: upward(a, b).moved(left, c)),
        ),
        "v_lshl_add_u32": row(
            "u32 = u32 u32 u32",
            lambda a, b, c: left(a, b) + c,
            tracked(lambda a, b, c: upward(a.moved(left, b), c)),
        ),
        "v_lshl_add_u64": row("u64 = u64 u32 u64", lambda a, b, c: (a << (b & np.uint32(7)).astype(U64)) + c),
        "v_xad_u32": row("u32 = u32 u32 u32", lambda a, b, c: (a ^ b) + c, track=_SUM),
        "v_mul_lo_u32": row("u32 = u32 u32", np.multiply, track=_SUM),
        "v_mul_hi_u32": row(
            "u32 = u32 u32", lambda a, b: (a.astype(U64) * b.astype(U64) >> U64(32)).astype(np.uint32)
        ),
        "v_mul_hi_i32": row(
            "i32 = i32 i32", lambda a, b: (a.astype(np.int64) * b.astype(np.int64) >> 32).astype(np.int32)
        ),
        "v_mul_u32_u24": row(
            "u32 = u32 u32", lambda a, b: (_low24(a) * _low24(b)).astype(np.uint32), _SUM_OF_24_BITS
        ),
        "v_mul_i32_i24": row(
            "i32 = i32 i32", lambda a, b: (_low24(a) * _low24(b)).astype(np.int32), _SUM_OF_24_BITS
        ),
        "v_mul_hi_u32_u24": row(
            "u32 = u32 u32", lambda a, b: (_low24(a) * _low24(b) >> 32).astype(np.uint32)
        ),
        "v_mul_hi_i32_i24": row("i32 = i32 i32", lambda a, b: (_low24(a) * _low24(b) >> 32).astype(np.int32)),
        "v_mad_u32_u24": row(
            "u32 = u32 u32 u32",
            lambda a, b, c: (_low24(a) * _low24(b) + c).astype(np.uint32),
            _SUM_OF_24_BITS,
        ),
        "v_mad_i32_i24": row(
            "i32 = i32 i32 i32", lambda a, b, c: (_low24(a) * _low24(b) + c).astype(np.int32), _SUM_OF_24_BITS
        ),
        "v_mad_u64_u32": row("u64 mask = u32 u32 u64", _mad_wide, _wide_sum),
        "v_mad_i64_i32": row("i64 mask = i32 i32 i64", _mad_wide, _wide_sum),
        "v_mad_u32_u16": row(
            "u32 = u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b.astype(np.uint32) + c, _SUM
        ),
        "v_mad_i32_i16": row(
            "i32 = i16 i16 i32", lambda a, b, c: a.astype(np.int32) * b.astype(np.int32) + c, _SUM
        ),
        "v_mad_u16": row("u16 = u16 u16 u16", lambda a, b, c: a * b + c, keeps=True, track=_SUM),
        "v_add_i32": row("i32 = i32 i32", np.add, track=_SUM),
        "v_sub_i32": row("i32 = i32 i32", np.subtract, track=_SUM),
        "v_sad_u32": row(
            "u32 = u32 u32 u32", lambda a, b, c: (np.maximum(a, b) - np.minimum(a, b) + c).astype(np.uint32)
        ),
        "v_bfe_u32": row(
            "u32 = u32 u32 u32",
            field_of,
            tracked(lambda a, b, c: Partly(0, field_of(a.unknown, b.value, c.value) | b.unknown | c.unknown)),
        ),
        "v_bfe_i32": row(
            "i32 = i32 u32 u32",
            field_of,
            tracked(
                lambda a, b, c: Partly(
                    0,
                    field_of(a.unknown.view(np.int32), b.value, c.value).view(np.uint32)
                    | b.unknown
                    | c.unknown,
                )
            ),
        ),
        "v_bfm_b32": row("u32 = u32 u32", mask_bits),
        "v_alignbit_b32": row(
            "u32 = u32 u32 u32",
            lambda a, b, c: _align(a, b, c & np.uint32(31)),
            tracked(
                lambda a, b, c: Partly(0, _align(a.unknown, b.unknown, c.value & np.uint32(31)) | c.unknown)
            ),
        ),
        "v_alignbyte_b32": row(
            "u32 = u32 u32 u32",
            lambda a, b, c: _align(a, b, (c & np.uint32(3)) * np.uint32(8)),
            tracked(
                lambda a, b, c: Partly(
                    0, _align(a.unknown, b.unknown, (c.value & np.uint32(3)) * np.uint32(8)) | c.unknown
                )
            ),
        ),
        "v_perm_b32": row(
            "u32 = u32 u32 u32",
            _perm,
            tracked(
                lambda a, b, c: Partly(
                    0,
                    np.where(
                        c.value & np.uint32(0x08080808), np.uint32(0), _perm(a.unknown, b.unknown, c.value)
                    )
                    | c.unknown,
                )
            ),
        ),
        "v_lshl_or_b32": row(
            "u32 = u32 u32 u32", lambda a, b, c: left(a, b) | c, tracked(lambda a, b, c: a.moved(left, b) | c)
        ),
        "v_sat_pk_u8_i16": row(
            "u16 = u32",
            lambda a: np.ascontiguousarray(a).view(np.int16).clip(0, 255).astype(np.uint8).view(np.uint16),
            keeps=True,
        ),
        "v_pack_b32_f16": row(
            "u32 = u16 u16",
            lambda a, b: a.astype(np.uint32) | (b.astype(np.uint32) << np.uint32(16)),
            lambda v, s: (
                (0 if s[0] is None else s[0].astype(np.uint32))
                | (np.uint32(0) if s[1] is None else s[1].astype(np.uint32) << np.uint32(16))
            ),
        ),
    }
    for name, function in _LOGIC.items():
        rows[f"v_{name}_b32"] = row("u32 = u32 u32", function, tracked(function))
        rows[f"v_{name}_b16"] = row("u16 = u16 u16", function, tracked(function))
    for name, function in _THREE.items():
        rows[f"v_{name}_b32"] = row("u32 = u32 u32 u32", function, tracked(function))
    for shift in map(np.uint32, range(0, 32, 8)):
        rows[f"v_cvt_f32_ubyte{shift // 8}"] = row(
            "f32 = u32",
            lambda a, shift=shift: ((a >> shift) & np.uint32(255)).astype(np.float32),
            tracked(
                lambda a, shift=shift: Partly(
                    0, np.where((a.unknown >> shift) & np.uint32(255), np.uint32(0xFFFFFFFF), np.uint32(0))
                )
            ),
        )
    for kind in ("u32", "i32", "u16", "i16"):
        rows[f"v_max_{kind}"] = row(f"{kind} = {kind} {kind}", np.maximum)
        rows[f"v_min_{kind}"] = row(f"{kind} = {kind} {kind}", np.minimum)
        rows[f"v_med3_{kind}"] = row(
            f"{kind} = {kind} {kind} {kind}",
            lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)),
            keeps=True,
        )
        rows[f"v_max3_{kind}"] = row(
            f"{kind} = {kind} {kind} {kind}", lambda a, b, c: np.maximum(np.maximum(a, b), c), keeps=True
        )
        rows[f"v_min3_{kind}"] = row(
            f"{kind} = {kind} {kind} {kind}", lambda a, b, c: np.minimum(np.minimum(a, b), c), keeps=True
        )
    for one, other in (("max", "min"), ("min", "max")):
        for kind in ("u32", "i32"):
            inner, outer = rows[f"v_{one}_{kind}"].compute, rows[f"v_{other}_{kind}"].compute
            rows[f"v_{one}{other}_{kind}"] = row(
                f"{kind} = {kind} {kind} {kind}", lambda a, b, c, i=inner, o=outer: o(i(a, b), c)
            )
    for kind in ("u16", "i16"):
        rows[f"v_add_{kind}"] = row(f"{kind} = {kind} {kind}", np.add, _SUM)
        rows[f"v_sub_{kind}"] = row(f"{kind} = {kind} {kind}", np.subtract, _SUM)
    rows |= {
        "v_subrev_u16": row("u16 = u16 u16", lambda a, b: b - a, track=_SUM),
        "v_mul_lo_u16": row("u16 = u16 u16", np.multiply, track=_SUM),
    }
    for bits in (16, 32, 64):
        by = "u16" if bits == 16 else "u32"
        for name, kind, move, of_bits in (
            ("lshlrev_b", "u", left, left),
            ("lshrrev_b", "u", right, right),
            ("ashrrev_i", "i", right, lambda x, by: right(x.view(f"i{x.dtype.itemsize}"), by).view(x.dtype)),
        ):
            rows[f"v_{name}{bits}"] = row(
                f"{kind}{bits} = {by} {kind}{bits}",
                lambda a, b, move=move: move(b, a),
                tracked(lambda a, b, move=of_bits: b.moved(move, a)),
            )
    for new, old in _RENAMED.items():
        rows[new] = rows[old]
    return rows


_RENAMED = {
    f"v_{name}_nc_{kind}": f"v_{name}_{kind}"
    for name in ("add", "sub")
    for kind in ("u32", "i32", "u16", "i16")
} | {
    "v_subrev_nc_u32": "v_subrev_u32",
    "v_add_co_ci_u32": "v_addc_co_u32",
    "v_sub_co_ci_u32": "v_subb_co_u32",
    "v_subrev_co_ci_u32": "v_subbrev_co_u32",
}
"""Names of gfx9 instructions on gfx11."""

INTEGERS = _rows()
