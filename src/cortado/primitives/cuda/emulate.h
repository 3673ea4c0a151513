// Emulates a GPU's thread block on the host, to test kernels without a GPU. Every thread is a fiber. A warp-wide
// operation (matrix product, tile fragment, shuffle) runs once all of its lanes have arrived; a barrier opens once all
// threads of the block have. Fibers take turns in one of several orders, and asynchronous copies happen at once or as
// late as allowed. A missing barrier or wait shows up in one of these.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#define DEV inline
#define __global__ inline
#define __launch_bounds__(...)
#define blockIdx gpu::Block::running().index
#define CORTADO_THREAD gpu::Block::running().thread()
#define __syncthreads() gpu::Block::running().synchronize()
#define __shfl_up_sync(mask, x, by) gpu::shuffle(x, [&](int lane) { return lane >= (by) ? lane - (by) : lane; })
#define __shfl_xor_sync(mask, x, by) gpu::shuffle(x, [&](int lane) { return lane ^ (by); })
#define __any_sync(mask, x) gpu::any(x)
#define __syncwarp() gpu::any(false)
#define __shfl_sync(mask, x, from) gpu::shuffle_from(x, from)

namespace gpu {

struct Dim3 {
  int x = 1, y = 1, z = 1;
};

struct Order {
  bool backwards = false;    // the last block and the last thread run first
  bool warps_alone = false;  // a warp runs as long as it can before another one starts
  bool late_copies = true;
};

// The emulated 16-bit type: bfloat16, rounded to nearest even.
inline float wide(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return 0x7fff;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

class Block {
 public:
  Block(int threads, size_t shared, Order order)
      : order_(order), shared_(shared + 1024), fibers_(threads), warps_(threads / 32) {
    shared_begin_ = shared_.data() + (1024 - reinterpret_cast<uintptr_t>(shared_.data()) % 1024) % 1024;
    size_ = shared;
  }

  static Block& running() { return *current(); }
  Dim3 index;
  int thread() const { return thread_; }
  unsigned char* shared() { return shared_begin_; }

  void run(const std::function<void()>& body) {
    current() = this;
    std::fill_n(shared_begin_, size_, 0xff);  // NaN in 16 and in 32 bits
    body_ = &body;
    for (auto& fiber : fibers_) fiber.begin();
    const int count = int(fibers_.size()), together = order_.warps_alone ? 32 : count;
    for (left_ = count; left_ > 0;) {
      bool any = false;
      for (int i = 0; i < count; i += together) {
        const int begin = order_.backwards ? count - together - i : i;
        while (turn(begin, together)) any = true;
      }
      if (!any) throw std::runtime_error("threads of a block wait for each other in vain");
    }
    for (const Fiber& fiber : fibers_) {
      for (const auto& group : fiber.groups) {
        if (!group.empty()) throw std::runtime_error("a copy was never waited for");
      }
    }
  }

  void synchronize() {
    meet(all_, int(fibers_.size()), [] {});
  }

  // A warp-wide operation: each lane deposits its `x`, the last lane to arrive computes all results, each lane takes
  // its own.
  template <typename In, typename Out, typename Work>
  Out together(const In& x, const Work& work) {
    Warp& warp = warps_[size_t(thread_ / 32)];
    const int lane = thread_ % 32;
    static_assert(sizeof(In) <= sizeof(warp.in[0]) && sizeof(Out) <= sizeof(warp.out[0]));
    std::memcpy(warp.in[lane], &x, sizeof(In));
    meet(warp, 32, [&] {
      std::array<In, 32> all;
      std::array<Out, 32> results{};
      for (int i = 0; i < 32; ++i) std::memcpy(&all[size_t(i)], warp.in[i], sizeof(In));
      work(all, results);
      for (int i = 0; i < 32; ++i) std::memcpy(warp.out[i], &results[size_t(i)], sizeof(Out));
    });
    Out mine;
    std::memcpy(&mine, warp.out[lane], sizeof(Out));
    return mine;
  }

  // Copies `size` bytes or none; kernels never ask for a part.
  void copy(uint32_t to, const void* from, int size, int bytes) {
    if (bytes != 0 && bytes != size) throw_later("a copy of a part");
    const auto make = [=, this] {
      std::memcpy(at(to, size), from, size_t(bytes));
      std::memset(at(to, size) + bytes, 0, size_t(size - bytes));
    };
    if (!order_.late_copies) make();
    own().open.push_back(order_.late_copies ? std::function<void()>(make) : [] {});
  }
  void end_group() { own().groups.push_back(std::exchange(own().open, {})); }
  void wait_for_groups(int left) {
    auto& groups = own().groups;
    for (; int(groups.size()) > left; groups.pop_front()) {
      for (const auto& make : groups.front()) make();
    }
  }

  // Checks and translates an address: access outside of shared memory is an error of the kernel. The first address is
  // not 0, as on some GPUs.
  unsigned char* at(uint32_t address, int bytes) {
    if (address < kFirstAddress || size_t(address - kFirstAddress) + size_t(bytes) > size_) {
      throw_later("outside of shared memory");
    }
    return shared_begin_ + (address - kFirstAddress);
  }
  uint32_t address(const void* pointer) {
    return kFirstAddress + uint32_t(static_cast<const unsigned char*>(pointer) - shared_begin_);
  }
  void throw_later(const char* what) {
    std::fprintf(stderr, "[emulate] %s\n", what);
    std::abort();  // exceptions cannot pass from one fiber to another
  }

 private:
  struct Meeting {
    int come = 0;
    uint64_t number = 0;
  };
  struct Warp : Meeting {
    alignas(16) unsigned char in[32][64], out[32][64];
  };
  // Where a fiber resumes. swapcontext makes a system call for the signal mask at every switch, which would be most of
  // a test's time. Therefore it only starts fibers. Under sanitizers, which cannot follow longjmp to another stack, it
  // makes every switch.
  struct Place {
    ucontext_t context;
    jmp_buf here;
    bool left = false;  // the fiber has been left here before

    void leave_for(Place& other) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
      ::swapcontext(&context, &other.context);
#else
      left = true;
      if (_setjmp(here)) return;
      if (other.left) _longjmp(other.here, 1);
      ::setcontext(&other.context);
#endif
    }
  };
  struct Fiber {
    Place place;
    std::unique_ptr<unsigned char[]> stack;
    bool ended = false;
    std::vector<std::function<void()>> open;
    std::deque<std::vector<std::function<void()>>> groups;

    void begin() {
      constexpr size_t kStack = 128 << 10;
      if (!stack) stack = std::make_unique<unsigned char[]>(kStack);
      ended = false;
      groups.clear();
      open.clear();
      place.left = false;
      ::getcontext(&place.context);
      place.context.uc_stack.ss_sp = stack.get();
      place.context.uc_stack.ss_size = kStack;
      place.context.uc_link = nullptr;  // the fiber does not return
      ::makecontext(
          &place.context,
          [] {
            Block& block = running();
            (*block.body_)();
            block.own().ended = true;
            block.own().place.leave_for(block.scheduler_);
          },
          0);
    }
  };

  static Block*& current() {
    static Block* block = nullptr;
    return block;
  }
  Fiber& own() { return fibers_[size_t(thread_)]; }

  // Runs each of these threads until it waits. Returns false if none advanced.
  bool turn(int begin, int count) {
    advanced_ = false;
    for (int i = 0; i < count; ++i) {
      thread_ = begin + (order_.backwards ? count - 1 - i : i);
      if (own().ended) continue;
      scheduler_.leave_for(own().place);
      if (!own().ended) continue;
      --left_;
      advanced_ = true;
    }
    return advanced_;
  }

  template <typename Last>
  void meet(Meeting& meeting, int count, const Last& last) {
    const uint64_t number = meeting.number;
    advanced_ = true;
    if (++meeting.come == count) {
      last();
      meeting.come = 0;
      ++meeting.number;
    }
    while (meeting.number == number) own().place.leave_for(scheduler_);
  }

  const Order order_;
  static constexpr uint32_t kFirstAddress = 1024;
  std::vector<unsigned char> shared_;
  unsigned char* shared_begin_;
  size_t size_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  Meeting all_;
  Place scheduler_;
  const std::function<void()>* body_ = nullptr;
  int thread_ = 0, left_ = 0;  // left_: threads that have not ended
  bool advanced_ = false;
};

// Runs the body for every thread of every block, block by block; the last block first if `backwards`.
inline void run(Dim3 blocks, int threads, size_t shared, Order order, const std::function<void()>& body) {
  Block block(threads, shared, order);
  const auto turn_of = [&](int i, int count) { return order.backwards ? count - 1 - i : i; };
  for (int z = 0; z < blocks.z; ++z) {
    for (int y = 0; y < blocks.y; ++y) {
      for (int x = 0; x < blocks.x; ++x) {
        block.index = {turn_of(x, blocks.x), turn_of(y, blocks.y), turn_of(z, blocks.z)};
        block.run(body);
      }
    }
  }
}

inline unsigned char* shared_memory() { return Block::running().shared(); }
inline uint32_t shared_address(const void* pointer) { return Block::running().address(pointer); }
inline uint32_t pack(float low, float high) { return narrow(low) | uint32_t(narrow(high)) << 16; }
inline uint32_t multiply2(uint32_t a, uint32_t b) {
  return pack(wide(uint16_t(a)) * wide(uint16_t(b)), wide(uint16_t(a >> 16)) * wide(uint16_t(b >> 16)));
}
inline uint32_t larger2(uint32_t a, uint32_t b) {
  const auto larger = [](uint16_t x, uint16_t y) { return wide(x) > wide(y) ? x : y; };
  return larger(uint16_t(a), uint16_t(b)) | uint32_t(larger(uint16_t(a >> 16), uint16_t(b >> 16))) << 16;
}
inline float power(float x) { return std::exp2(x); }
inline float square_root(float x) { return std::sqrt(x); }
inline float logarithm(float x) { return std::log2(x); }
inline void copy(uint32_t to, const void* from, int size, int bytes) { Block::running().copy(to, from, size, bytes); }
inline void end_group() { Block::running().end_group(); }
inline void wait_for_groups(int left) { Block::running().wait_for_groups(left); }

template <typename T, typename From>
T shuffle(T x, const From& from) {
  return Block::running().together<T, T>(x, [&](const auto& in, auto& out) {
    for (int lane = 0; lane < 32; ++lane) out[size_t(lane)] = in[size_t(from(lane))];
  });
}
// A shuffle in which each lane names its source lane.
template <typename T>
T shuffle_from(T x, int from) {
  struct In {
    T x;
    int from;
  };
  return Block::running().together<In, T>({x, from}, [](const auto& in, auto& out) {
    for (size_t lane = 0; lane < 32; ++lane) out[lane] = in[size_t(in[lane].from)].x;
  });
}
inline bool any(bool x) {
  return Block::running().together<int, int>(x, [](const auto& in, auto& out) {
    const bool found = std::any_of(in.begin(), in.end(), [](int one) { return one != 0; });
    std::fill(out.begin(), out.end(), int(found));
  }) != 0;
}

struct Registers {
  uint32_t r[4];
};

// ldmatrix: lane l gets, of each 8 x 8 matrix, row l / 4, columns 2 (l % 4) and + 1; if `transposed`, of its transpose.
inline void load4(uint32_t* out, uint32_t row, bool transposed) {
  const Registers mine = Block::running().together<uint32_t, Registers>(row, [&](const auto& rows, auto& results) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t x[8][8];
      for (int r = 0; r < 8; ++r) std::memcpy(x[r], Block::running().at(rows[size_t(matrix * 8 + r)], 16), 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int i = lane / 4, j = lane % 4 * 2;
        const uint16_t low = transposed ? x[j][i] : x[i][j], high = transposed ? x[j + 1][i] : x[i][j + 1];
        results[size_t(lane)].r[matrix] = low | uint32_t(high) << 16;
      }
    }
  });
  std::memcpy(out, mine.r, 16);
}

// mma.m16n8k16 with the fragment layouts that PTX specifies.
inline void multiply(float* sum, const uint32_t* a, uint32_t b0, uint32_t b1) {
  struct In {
    uint32_t a[4], b[2];
    float sum[4];
  } in = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {sum[0], sum[1], sum[2], sum[3]}};
  struct Out {
    float sum[4];
  };
  const Out mine = Block::running().together<In, Out>(in, [](const auto& all, auto& results) {
    float left[16][16], right[16][8];
    const auto part = [](uint32_t both, int i) { return wide(uint16_t(i ? both >> 16 : both)); };
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, c = lane % 4 * 2;
      for (int i = 0; i < 2; ++i) {
        for (int half = 0; half < 2; ++half) {
          left[g][c + 8 * half + i] = part(all[size_t(lane)].a[2 * half], i);
          left[g + 8][c + 8 * half + i] = part(all[size_t(lane)].a[2 * half + 1], i);
          right[c + 8 * half + i][g] = part(all[size_t(lane)].b[half], i);
        }
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
        float total = all[size_t(lane)].sum[i];
        for (int k = 0; k < 16; ++k) total += left[row][k] * right[k][column];
        results[size_t(lane)].sum[i] = total;
      }
    }
  });
  std::memcpy(sum, mine.sum, 16);
}

}  // namespace gpu
