#include "cortado/mechanisms/macchiato/selection.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cortado/mechanisms/shared/pairs.h"

namespace cortado {
namespace {

struct Candidate {
  int64_t pair, token;     // its index among all candidates' numbers, its position in the text
  double lasting, fading;  // the two scores
  double length;
};

// The candidates of one row and head, ordered by age.
class Competition {
 public:
  Competition(const CacheRule& rule, int64_t most, double tie) : rule_(rule), most_(most), tie_(tie) {}

  void add(const Candidate& candidate) { all_.push_back(candidate); }
  const std::vector<Candidate>& held() const { return all_; }

  // Judges before the chunk whose first token is `first`: the highest lasting scores stay, and among the rest the
  // highest faded scores.
  void judge(int64_t first) {
    const auto most = static_cast<size_t>(most_), lasting = static_cast<size_t>(rule_.lasting(most_));
    if (all_.size() <= most) return;
    const double near = tie_ * largest();
    ranked_.clear();
    for (size_t n = 0; n < all_.size(); ++n) ranked_.emplace_back(ranked(all_[n].lasting), n);
    choose(0, lasting, near);
    for (size_t n = lasting; n < ranked_.size(); ++n) {
      const Candidate& each = all_[ranked_[n].second];
      ranked_[n].first = rule_.faded(ranked(each.fading), first - each.token);
    }
    choose(lasting, most, near);
    for (size_t n = most; n < ranked_.size(); ++n) all_[ranked_[n].second].pair = kGone;
    std::erase_if(all_, [](const Candidate& each) { return each.pair == kGone; });
  }

 private:
  using Ranked = std::pair<double, size_t>;  // a score and its candidate's index
  static constexpr int64_t kGone = -1;

  static double ranked(double score) { return std::isnan(score) ? HUGE_VAL : score; }

  // Partially sorts ranked_ from `begin` on, so that the highest scores come before `end`. Among equals the older comes
  // first; equality is transitive.
  void choose(size_t begin, size_t end, double near) {
    if (begin == end) return;
    const auto at = [&](size_t n) { return ranked_.begin() + static_cast<std::ptrdiff_t>(n); };
    const auto higher = [](const Ranked& a, const Ranked& b) { return a.first > b.first; };
    const auto equal = [&](const Ranked& a, const Ranked& b) {
      return std::isfinite(a.first) && a.first - b.first <= std::max(near, tie_ * std::abs(a.first));
    };
    std::nth_element(at(begin), at(end), ranked_.end(), higher);
    // the scores on both sides of `end` differ
    if (!equal(*std::max_element(at(begin), at(end), higher), *at(end))) return;
    std::sort(at(begin), ranked_.end(), higher);
    size_t first = end, last = end;
    while (first > begin && equal(*at(first - 1), *at(first))) --first;
    while (last < ranked_.size() && equal(*at(last - 1), *at(last))) ++last;
    std::sort(at(first), at(last), [](const Ranked& a, const Ranked& b) { return a.second < b.second; });
  }

  // The scale of rounding errors: the largest score or value vector.
  double largest() const {
    double largest = 0;
    for (const Candidate& each : all_) {
      for (const double x : {each.length, std::abs(each.lasting), std::abs(each.fading)})
        largest = std::isfinite(x) ? std::max(largest, x) : largest;
    }
    return largest;
  }

  const CacheRule& rule_;
  int64_t most_;
  double tie_;
  std::vector<Candidate> all_;
  std::vector<Ranked> ranked_;
};

class Selecting {
 public:
  Selecting(const CacheCandidates& candidates, const CacheCall& call, const CacheRule& rule, int64_t most)
      : candidates_(candidates),
        call_(call),
        rule_(rule),
        most_(most),
        numbers_(candidates.scores.size(1)),
        heads_(candidates.scores.size(2)),
        tie_(score_tie(candidates.scores.scalar_type())),
        scores_(on_cpu(candidates.scores)),
        lengths_(on_cpu(candidates.v.detach().to(candidates.scores.scalar_type()).norm(2, -1))),
        places_(on_cpu(candidates.places)) {}

  CacheSelection run() {
    int64_t chunks = 0, most_in_chunk = 0, most_at_end = 0;
    for (size_t row = 0; row < call_.position.size(); ++row) {
      chunks += call_.chunks(row, rule_.chunk);
      most_in_chunk = std::max(most_in_chunk, count_at(call_.end(row) - 1));
      most_at_end = std::max(most_at_end, count_at(call_.end(row)));
    }
    CacheSelection found{{chunks, most_in_chunk, heads_},
                         {static_cast<int64_t>(call_.position.size()), most_at_end, heads_}};
    for (size_t row = 0, chunk = 0; row < call_.position.size(); ++row) {
      for (int64_t head = 0; head < heads_; ++head) {
        size_t set = chunk;
        for_each_chunk(row, head, [&](int64_t first, const std::vector<Candidate>& held) {
          if (first < call_.end(row)) write(found.chunks, set++, row, head, first, held);
          if (first + rule_.chunk > call_.end(row)) write(found.end, row, row, head, first, held);
        });
      }
      chunk += static_cast<size_t>(call_.chunks(row, rule_.chunk));
    }
    return found;
  }

 private:
  static Tensor on_cpu(const Tensor& x) { return x.to(at::kCPU, at::kDouble).contiguous(); }
  int64_t count_at(int64_t token) const { return std::min(most_, rule_.judged(token)); }

  Candidate candidate(size_t row, int64_t head, int64_t number, int64_t token) const {
    const int64_t pair = (static_cast<int64_t>(row) * numbers_ + number) * heads_ + head;
    const int64_t kinds = rule_.scores_of_pair();
    const double* scores = scores_.const_data_ptr<double>() + pair * kinds;
    return {pair, token, scores[0], scores[kinds - 1], lengths_.const_data_ptr<double>()[pair]};
  }

  // Calls see(first token, the pairs in the cache) for every chunk, up to the chunk of the token after the call.
  template <typename See>
  void for_each_chunk(size_t row, int64_t head, const See& see) const {
    Competition competition(rule_, most_, tie_);
    const int64_t position = call_.position[row], begin = call_.first_chunk(row, rule_.chunk),
                  held = count_at(position);
    for (int64_t number = candidates_.cached - held; number < candidates_.cached; ++number) {
      Candidate old = candidate(row, head, number, 0);
      old.token = static_cast<int64_t>(places_.const_data_ptr<double>()[old.pair]);
      competition.add(old);
    }
    see(begin, competition.held());
    for (int64_t chunk = begin + rule_.chunk; chunk <= call_.end(row); chunk += rule_.chunk) {
      for (int64_t token = rule_.judged(chunk - rule_.chunk); token < rule_.judged(chunk); ++token) {
        const int64_t number = candidates_.cached + call_.place(row, token) - candidates_.first;
        competition.add(candidate(row, head, number, token));
      }
      competition.judge(chunk);
      see(chunk, competition.held());
    }
  }

  // Writes one set: the pairs, and the positions by which their keys are rotated back for the chunk whose first token
  // is `first`.
  void write(CacheSets& sets, size_t set, size_t row, int64_t head, int64_t first,
             const std::vector<Candidate>& held) const {
    const int64_t places = sets.pairs.size(1), count = static_cast<int64_t>(held.size());
    const int64_t begin = (static_cast<int64_t>(set) * places + places - count) * heads_ + head;
    auto* pairs = sets.pairs.mutable_data_ptr<int64_t>() + begin;
    auto* turns = sets.turns.mutable_data_ptr<int64_t>() + begin;
    for (int64_t n = 0; n < count; ++n) {
      const Candidate& each = held[static_cast<size_t>(n)];
      const bool old = each.pair / heads_ % numbers_ < candidates_.cached;
      pairs[n * heads_] = each.pair;
      turns[n * heads_] =
          rule_.before(each.token, first) - (old ? rule_.before(each.token, call_.first_chunk(row, rule_.chunk)) : 0);
    }
    sets.counts[set] = count;
  }

  const CacheCandidates& candidates_;
  const CacheCall& call_;
  const CacheRule& rule_;
  int64_t most_, numbers_, heads_;
  double tie_;
  Tensor scores_, lengths_, places_;
};

}  // namespace

CacheSets::CacheSets(int64_t sets, int64_t places, int64_t heads)
    : pairs(at::zeros({sets, places, heads}, at::kLong)),
      turns(at::zeros({sets, places, heads}, at::kLong)),
      counts(static_cast<size_t>(sets)) {}

Tensor CacheSets::absent() const {
  const int64_t places = pairs.size(1);
  const Tensor first = at::rsub(at::tensor(counts, at::kLong), places).view({-1, 1, 1});
  return at::arange(places, at::kLong).view({1, places, 1}) < first;
}

CacheSelection select_pairs(const CacheCandidates& candidates, const CacheCall& call, const CacheRule& rule,
                            int64_t most) {
  return Selecting(candidates, call, rule, most).run();
}

}  // namespace cortado
