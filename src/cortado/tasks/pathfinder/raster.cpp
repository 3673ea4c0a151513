#include "cortado/tasks/pathfinder/raster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace cortado {
namespace {

constexpr int64_t kFiner = 2;                       // fine pixels per pixel, in each direction
constexpr int64_t kTaps = int64_t{2} * 3 * kFiner;  // taps of a Lanczos filter with three lobes

double sinc(double x) { return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x); }

// The filter's weights for the fine pixels around a pixel, from 5 before its left edge to 5 after its right edge.
const std::array<double, kTaps>& lanczos() {
  static const auto weights = [] {
    std::array<double, kTaps> w{};
    double sum = 0;
    for (int64_t i = 0; i < kTaps; ++i) {
      const double x = (double(i) - double(kTaps - 1) / 2) / kFiner;
      sum += w[size_t(i)] = sinc(x) * sinc(x / 3);
    }
    for (double& one : w) one /= sum;
    return w;
  }();
  return weights;
}

double squared_distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y, square = dx * dx + dy * dy;
  const double along = square > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / square, 0.0, 1.0) : 0;
  const double x = p.x - a.x - along * dx, y = p.y - a.y - along * dy;
  return x * x + y * y;
}

// Filters and downsamples rows. A row of `fine` has kFiner * width + kTaps - kFiner values.
std::vector<float> narrowed(const std::vector<float>& fine, int64_t rows, int64_t width) {
  const int64_t stride = kFiner * width + kTaps - kFiner;
  std::vector<float> narrow(size_t(rows * width), 0);
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      double sum = 0;
      for (int64_t i = 0; i < kTaps; ++i) sum += lanczos()[size_t(i)] * fine[size_t(y * stride + kFiner * x + i)];
      narrow[size_t(y * width + x)] = float(sum);
    }
  }
  return narrow;
}

std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> other(values.size());
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = 0; x < columns; ++x) other[size_t(x * rows + y)] = values[size_t(y * columns + x)];
  }
  return other;
}

}  // namespace

float GreyImage::highest_with(const Patch& patch) const {
  float highest = 0;
  for (int64_t y = 0; y < patch.height; ++y) {
    for (int64_t x = 0; x < patch.width; ++x) {
      const float value = patch.values[size_t(y * patch.width + x)];
      if (value > 0) highest = std::max(highest, value + at(patch.left + x, patch.top + y));
    }
  }
  return highest;
}

void GreyImage::add(const Patch& patch, float times) {
  for (int64_t y = 0; y < patch.height; ++y) {
    for (int64_t x = 0; x < patch.width; ++x) {
      at(patch.left + x, patch.top + y) += times * patch.values[size_t(y * patch.width + x)];
    }
  }
}

void GreyImage::keep_larger(const Patch& patch, float contrast) {
  for (int64_t y = 0; y < patch.height; ++y) {
    for (int64_t x = 0; x < patch.width; ++x) {
      float& value = at(patch.left + x, patch.top + y);
      value = std::max(value, contrast * patch.values[size_t(y * patch.width + x)]);
    }
  }
}

Patch draw_line(Point a, Point b, double radius, int64_t size) {
  const double far = radius + 2;  // the filter blurs, noticeably up to one or two pixels
  const auto bound = [&](double value) { return std::clamp<int64_t>(int64_t(std::floor(value)), 0, size); };
  Patch patch{.left = bound(std::min(a.x, b.x) - far), .top = bound(std::min(a.y, b.y) - far)};
  patch.width = bound(std::max(a.x, b.x) + far + 1) - patch.left;
  patch.height = bound(std::max(a.y, b.y) + far + 1) - patch.top;
  const int64_t margin = (kTaps - kFiner) / 2;
  const int64_t columns = kFiner * patch.width + 2 * margin, rows = kFiner * patch.height + 2 * margin;
  std::vector<float> fine(size_t(rows * columns), 0);
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = 0; x < columns; ++x) {
      // The centre of the image's pixel (x, y) is at (x, y).
      const Point p{double(patch.left) - 0.5 + (double(x - margin) + 0.5) / kFiner,
                    double(patch.top) - 0.5 + (double(y - margin) + 0.5) / kFiner};
      fine[size_t(y * columns + x)] = squared_distance(p, a, b) <= radius * radius ? 1.0F : 0.0F;
    }
  }
  const auto half = transposed(narrowed(fine, rows, patch.width), rows, patch.width);
  patch.values = transposed(narrowed(half, patch.width, patch.height), patch.width, patch.height);
  for (float& value : patch.values) value = std::clamp(value, 0.0F, 1.0F);
  return patch;
}

}  // namespace cortado
