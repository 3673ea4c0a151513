// The elementwise scan if rows and channels fill the GPU: each block walks through all time of kGpuStreamChannels
// channels of a row. Inputs pass through stages of shared memory, so that each is read only once and enough reads are
// in flight.
#pragma once

#include "cortado/primitives/elementwise_scan/kernel_gpu.h"
#include "cortado/primitives/elementwise_scan/timewise_gpu-inl.h"

namespace cortado::elementwise {

using namespace device;
using timewise::Place;

// Two or three tensors, in the walk's order.
template <int kStreams>
class Stream {
 public:
  DEV Stream(const GpuTimes& times, const GpuChannels* const* streams) : times_(times), thread_(CORTADO_THREAD) {
    at_.row = blockIdx.y;
    at_.channel = blockIdx.x * kGpuStreamChannels + thread_;
    at_.there = thread_ < kGpuStreamChannels && at_.channel < times.channels;
    at_.batch = times.bounds ? 0 : at_.row;
    at_.first = times.bounds ? times.bounds[at_.row] : 0;
    at_.tokens = times.bounds ? static_cast<int>(times.bounds[at_.row + 1] - at_.first) : times.tokens;
    for (int i = 0; i < kStreams; ++i) streams_[i] = streams[i];
  }

  const Place& at() const { return at_; }
  DEV int token(int p) const { return times_.reverse ? at_.tokens - 1 - p : p; }
  // Where token p is written, and the distance to the next token: numbers are written one after the other.
  DEV float* place(const GpuChannels& x, int p) const { return at_.at(x, 0) + token(p) * x.token; }
  DEV long long next(const GpuChannels& x) const { return times_.reverse ? -x.token : x.token; }

  // Calls work(numbers, p) for every token, on the threads that have a channel.
  template <typename Work>
  DEV void run(const Work& work) {
    for (int i = 0; i + 1 < kGpuStreamStages; ++i) fetch(i);
    const int stages = (at_.tokens + kGpuStreamTokens - 1) / kGpuStreamTokens;
    for (int s = 0; s < stages; ++s) {
      wait_for_groups<kGpuStreamStages - 2>();
      __syncthreads();
      fetch(s + kGpuStreamStages - 1);
      if (!at_.there) continue;
      const float* from = stage(s) + thread_;
      const int first = s * kGpuStreamTokens, count = at_.tokens - first;
      if (count >= kGpuStreamTokens) {
        Numbers numbers[kGpuStreamTokens];  // read before the first write: a read would wait for preceding writes
        UNROLL for (int i = 0; i < kGpuStreamTokens; ++i) numbers[i] = read(from, i);
        UNROLL for (int i = 0; i < kGpuStreamTokens; ++i) work(numbers[i].x, first + i);
      } else {
        for (int i = 0; i < count; ++i) work(read(from, i).x, first + i);
      }
    }
    wait_for_groups<0>();
  }

 private:
  static constexpr int kNumbers = kGpuStreamTokens * kGpuStreamChannels;  // per tensor and stage

  DEV float* stage(int s) const {
    return reinterpret_cast<float*>(shared_memory()) + s % kGpuStreamStages * kStreams * kNumbers;
  }

  struct Numbers {
    float x[kStreams];
  };
  DEV static Numbers read(const float* from, int i) {
    Numbers numbers;
    UNROLL for (int j = 0; j < kStreams; ++j) numbers.x[j] = from[j * kNumbers + i * kGpuStreamChannels];
    return numbers;
  }

  DEV void fetch(int s) const {
    constexpr int kPieces = kGpuStreamChannels / 4;
    UNROLL for (int j = 0; j < kStreams; ++j) {
      UNROLL for (int n = 0; n < kGpuStreamTokens * kPieces / kGpuStreamThreads; ++n) {
        const int piece = thread_ + n * kGpuStreamThreads, i = piece / kPieces, x = piece % kPieces * 4;
        const int p = s * kGpuStreamTokens + i, channel = blockIdx.x * kGpuStreamChannels + x;
        const bool there = p < at_.tokens && channel < times_.channels;
        const GpuChannels& tensor = *streams_[j];
        const float* from =
            there ? tensor.data + at_.batch * tensor.batch + (at_.first + token(p)) * tensor.token + channel
                  : tensor.data;
        copy16(shared_address(stage(s) + j * kNumbers + i * kGpuStreamChannels + x), from, there ? 16 : 0);
      }
    }
    end_group();
  }

  const GpuTimes& times_;
  const int thread_;
  const GpuChannels* streams_[kStreams];
  Place at_;
};

DEV void stream_scan(const GpuScan& in) {
  const GpuChannels* streams[] = {&in.log_a, &in.b};
  Stream<2> stream(in.times, streams);
  const Place at = stream.at();
  const ScanOp op{in};
  ScanCarry carry = at.there ? op.initial_of(at) : op.nothing();
  float* h = stream.place(in.h, 0);
  const long long next = stream.next(in.h);
  stream.run([&](const float* x, int) {
    carry.h = exponential(x[0]) * carry.h + x[1];
    *h = carry.h;
    h += next;
  });
  if (at.there) op.finish(at, carry);
}

// A token's h_{t-1} arrives with the next token of the walk.
DEV void stream_scan_gradient(const GpuScanGradient& in) {
  const GpuChannels* streams[] = {&in.log_a, &in.h, &in.grad_h};
  Stream<3> stream(in.times, streams);
  const Place at = stream.at();
  const ScanGradientOp op{in};
  ScanCarry carry = at.there ? op.initial_of(at) : op.nothing();
  float *grad_b = stream.place(in.grad_b, 0), *grad_log_a = stream.place(in.grad_log_a, -1), decay = 1;
  const long long next_b = stream.next(in.grad_b), next_log_a = stream.next(in.grad_log_a);
  stream.run([&](const float* x, int p) {
    if (p > 0) *grad_log_a = carry.h * decay * x[1];
    grad_log_a += next_log_a;
    carry.h = decay * carry.h + x[2];
    *grad_b = carry.h;
    grad_b += next_b;
    decay = exponential(x[0]);
  });
  if (!at.there) return;
  if (at.tokens > 0) {
    const float start = in.initial ? in.initial[static_cast<long long>(at.row) * in.times.channels + at.channel] : 0.0f;
    *grad_log_a = carry.h * decay * start;
  }
  op.finish(at, carry);
}

}  // namespace cortado::elementwise
