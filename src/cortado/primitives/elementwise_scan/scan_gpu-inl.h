// The elementwise scan's operations for timewise_gpu-inl.h.
#pragma once

#include "cortado/primitives/elementwise_scan/kernel_gpu.h"
#include "cortado/primitives/elementwise_scan/timewise_gpu-inl.h"

namespace cortado::elementwise {

using device::exponential;
using timewise::Place;

struct alignas(8) ScanCarry {
  float log_decay, h;  // log of the factor on the state before, and what was added since
};

DEV ScanCarry join_scans(ScanCarry before, ScanCarry part) {
  return {before.log_decay + part.log_decay, exponential(part.log_decay) * before.h + part.h};
}

struct ScanOp : GpuScan {
  static constexpr int kAhead = 8;
  using Carry = ScanCarry;
  struct Input {
    float log_a, b;
  };
  DEV Carry nothing() const { return {0, 0}; }
  DEV Carry initial_of(const Place& at) const {
    return {0, initial ? initial[static_cast<long long>(at.row) * times.channels + at.channel] : 0.0f};
  }
  DEV void finish(const Place& at, Carry carry) const {
    if (last) last[static_cast<long long>(at.row) * times.channels + at.channel] = carry.h;
  }
  DEV Input load(const Place& at, int t) const { return {*at.at(log_a, t), *at.at(b, t)}; }
  DEV void absorb(Carry& carry, Input in) const {
    carry.h = exponential(in.log_a) * carry.h + in.b;
    carry.log_decay += in.log_a;
  }
  DEV Carry join(Carry before, Carry part) const { return join_scans(before, part); }
  DEV void step(Carry& carry, Input in, const Place& at, int t) const {
    carry.h = exponential(in.log_a) * carry.h + in.b;
    *at.at(h, t) = carry.h;
  }
};

struct ScanGradientOp : GpuScanGradient {
  static constexpr int kAhead = 4;
  using Carry = ScanCarry;
  struct Input {
    float own, later, before, grad;  // log_a of t and t + 1, h_{t-1}, dh_t
  };
  DEV Carry nothing() const { return {0, 0}; }
  DEV Carry initial_of(const Place& at) const {
    return {0, grad_last ? grad_last[static_cast<long long>(at.row) * times.channels + at.channel] : 0.0f};
  }
  // The scan's first token comes last.
  DEV void finish(const Place& at, Carry carry) const {
    if (!grad_initial) return;
    const int first = next > 0 ? 0 : at.tokens - 1;
    const float gate = at.tokens > 0 ? exponential(*at.at(log_a, first)) : 1.0f;
    grad_initial[static_cast<long long>(at.row) * times.channels + at.channel] = gate * carry.h;
  }
  DEV Input load(const Place& at, int t) const {
    const int later = t + next, before = t - next;
    const bool has_later = later >= 0 && later < at.tokens, has_before = before >= 0 && before < at.tokens;
    const float start = initial ? initial[static_cast<long long>(at.row) * times.channels + at.channel] : 0.0f;
    return {*at.at(log_a, t), has_later ? *at.at(log_a, later) : 0.0f, has_before ? *at.at(h, before) : start,
            *at.at(grad_h, t)};
  }
  DEV void absorb(Carry& carry, Input in) const {
    carry.h = exponential(in.later) * carry.h + in.grad;
    carry.log_decay += in.later;
  }
  DEV Carry join(Carry before, Carry part) const { return join_scans(before, part); }
  DEV void step(Carry& carry, Input in, const Place& at, int t) const {
    carry.h = exponential(in.later) * carry.h + in.grad;
    *at.at(grad_b, t) = carry.h;
    *at.at(grad_log_a, t) = carry.h * exponential(in.own) * in.before;
  }
};

}  // namespace cortado::elementwise
