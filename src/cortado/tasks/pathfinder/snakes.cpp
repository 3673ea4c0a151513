#include "cortado/tasks/pathfinder/snakes.h"

#include <cmath>
#include <numbers>
#include <optional>

namespace cortado {
namespace {

constexpr float kTouching = 1.8F;  // sum of two paddles' masks at which they count as touching
constexpr int kPaddleTries = 3, kSnakeTries = 4;
constexpr double kLeastFree = 0.01;  // share of the window that must be free for another short snake

Point moved(Point from, double angle, double distance) {
  return {from.x + distance * std::cos(angle), from.y + distance * std::sin(angle)};
}

class Drawing {
 public:
  Drawing(const SnakeSizes& sizes, Draws& draws)
      : sizes_(sizes),
        draws_(draws),
        margin_(double(sizes.margins[size_t(draws.below(int64_t(sizes.margins.size())))])) {}

  SnakePicture picture() {
    SnakePicture result{GreyImage(sizes_.window), {}, {}, draws_.uniform() < 0.5};
    while (!two_snakes(result.snakes)) {
    }
    for (const Snake& snake : result.snakes) draw(snake, sizes_.contrast * sizes_.paddle_contrast, result.image);
    for (int64_t i = 0; i < sizes_.distractors && free_share() >= kLeastFree; ++i) {
      draw(short_snake(), sizes_.contrast, result.image);
    }
    const size_t one = size_t(draws_.below(2)), end = result.connected ? one : 1 - one;
    result.markers = {result.snakes[one].front().tail, result.snakes[end].back().head};
    for (const Point marker : result.markers) {
      result.image.keep_larger(draw_line(marker, marker, sizes_.marker, sizes_.window), 1);
    }
    return result;
  }

 private:
  // A growing snake: the middle of the gap before its last paddle, and that paddle's direction.
  struct Growing {
    Snake snake;
    Point pivot;
    double angle = 0;
    std::optional<Patch> last;  // not yet in the mask, because the next paddle may come near it
  };

  double random_angle() { return double(draws_.below(360)) * std::numbers::pi / 180; }
  bool inside(Point p) const {
    return mask_.holds(int64_t(std::lround(p.x)), int64_t(std::lround(p.y))) && p.x >= double(sizes_.padding) &&
           p.y >= double(sizes_.padding) && p.x <= double(sizes_.window - 1 - sizes_.padding) &&
           p.y <= double(sizes_.window - 1 - sizes_.padding);
  }
  Patch footprint(const Paddle& paddle) const {
    return draw_line(paddle.tail, paddle.head, sizes_.thickness / 2 + margin_, sizes_.window);
  }

  void clear() {
    mask_ = GreyImage(sizes_.window);
    for (int64_t y = 0; y < mask_.size; ++y) {
      for (int64_t x = 0; x < mask_.size; ++x) {
        const int64_t edge = std::min({x, y, mask_.size - 1 - x, mask_.size - 1 - y});
        mask_.at(x, y) = edge < sizes_.padding ? 1.0F : 0.0F;
      }
    }
  }

  // Places a first paddle with its tail at `tail`; nullopt if it does not fit.
  std::optional<Growing> begin(Point tail, double angle) {
    const Paddle paddle{tail, moved(tail, angle, sizes_.paddle)};
    if (!inside(paddle.tail) || !inside(moved(paddle.head, angle, margin_))) return {};
    Patch patch = footprint(paddle);
    if (mask_.highest_with(patch) >= kTouching) return {};
    return Growing{{paddle}, moved(tail, angle, -margin_), angle, std::move(patch)};
  }

  bool grow(Growing& snake) {
    const Point pivot = moved(snake.pivot, snake.angle, sizes_.paddle + 2 * margin_);
    const double reach = sizes_.paddle + margin_;
    std::vector<std::pair<double, double>> candidates;  // cumulative weight, direction
    double total = 0;
    for (int64_t y = int64_t(pivot.y - reach) - 1; y <= int64_t(pivot.y + reach) + 1; ++y) {
      for (int64_t x = int64_t(pivot.x - reach) - 1; x <= int64_t(pivot.x + reach) + 1; ++x) {
        if (std::abs(std::hypot(double(x) - pivot.x, double(y) - pivot.y) - reach) > 0.5 || !mask_.holds(x, y))
          continue;
        const double angle = std::atan2(double(y) - pivot.y, double(x) - pivot.x);
        const double turn = std::abs(std::remainder(angle - snake.angle, 2 * std::numbers::pi));
        const double straight = std::max(0.0, std::cos(std::min(sizes_.continuity * turn, std::numbers::pi / 2)));
        const double weight = std::max(0.0, 1 - double(occupied(x, y))) * straight * straight;
        if (weight <= 0) continue;
        candidates.emplace_back(total += weight, angle);
      }
    }
    for (int attempt = 0; attempt < kPaddleTries && !candidates.empty(); ++attempt) {
      const double drawn = draws_.uniform() * total;
      size_t chosen = 0;
      while (chosen + 1 < candidates.size() && candidates[chosen].first <= drawn) ++chosen;
      const double angle = candidates[chosen].second;
      const Paddle paddle{moved(pivot, angle, margin_), moved(pivot, angle, reach)};
      Patch patch = footprint(paddle);
      if (!inside(paddle.head) || mask_.highest_with(patch) >= kTouching) continue;
      if (snake.last) mask_.add(*snake.last);
      snake = {std::move(snake.snake), pivot, angle, std::move(patch)};
      snake.snake.push_back(paddle);
      return true;
    }
    return false;
  }

  // The largest mask value within a margin of the pixel.
  float occupied(int64_t x, int64_t y) const {
    float highest = 0;
    const auto far = int64_t(margin_);
    for (int64_t dy = -far; dy <= far; ++dy) {
      for (int64_t dx = -far; dx <= far; ++dx) {
        if (dx * dx + dy * dy <= far * far && mask_.holds(x + dx, y + dy)) {
          highest = std::max(highest, mask_.at(x + dx, y + dy));
        }
      }
    }
    return highest;
  }

  // Grows both long snakes in turns to their full length; false if that fails.
  bool two_snakes(std::array<Snake, 2>& snakes) {
    clear();
    const int64_t border = 2 * sizes_.seed_distance, room = sizes_.window - 2 * border;
    const Point tail{double(border + draws_.below(room)), double(border + draws_.below(room))};
    auto first = begin(tail, random_angle());
    if (!first) return false;
    auto second = begin(moved(tail, random_angle(), double(sizes_.seed_distance)), random_angle());
    if (!second) return false;
    for (int attempt = 0; attempt < kSnakeTries; ++attempt) {
      std::array<Growing, 2> growing{*first, *second};
      clear();
      bool whole = true;
      for (int64_t paddle = 1; whole && paddle < sizes_.contour; ++paddle) {
        for (size_t i = 0; whole && i < 2; ++i) {
          // The last paddle of the other snake is an obstacle, the snake's own is not.
          const Patch other = *growing[1 - i].last;
          mask_.add(other);
          whole = grow(growing[i]);
          mask_.add(other, -1);
        }
      }
      if (!whole) continue;
      for (size_t i = 0; i < 2; ++i) {
        mask_.add(*growing[i].last);
        snakes[i] = std::move(growing[i].snake);
      }
      return true;
    }
    return false;
  }

  // Grows as far as possible, up to `distractor` paddles.
  Snake short_snake() {
    const auto pixel = [&] { return double(draws_.below(sizes_.window)); };
    for (int attempt = 0; attempt < 100; ++attempt) {
      auto snake = begin({pixel(), pixel()}, random_angle());
      if (!snake || mask_.highest_with(*snake->last) > 1) continue;  // must start in free space
      while (int64_t(snake->snake.size()) < sizes_.distractor && grow(*snake)) {
      }
      mask_.add(*snake->last);
      return snake->snake;
    }
    return {};
  }

  double free_share() const {
    double free = 0;
    for (const float value : mask_.values) free += value < 0.5F;
    return free / double(mask_.values.size());
  }

  void draw(const Snake& snake, double contrast, GreyImage& image) const {
    for (const Paddle& paddle : snake) {
      image.keep_larger(draw_line(paddle.tail, paddle.head, sizes_.thickness / 2, sizes_.window), float(contrast));
    }
  }

  const SnakeSizes& sizes_;
  Draws& draws_;
  double margin_;
  GreyImage mask_{1};
};

}  // namespace

SnakePicture draw_snakes(const SnakeSizes& sizes, Draws& draws) { return Drawing(sizes, draws).picture(); }

}  // namespace cortado
