// Lines and discs as images. As in Pathfinder, they are drawn at twice the resolution and reduced with a Lanczos
// filter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cortado {

struct Point {
  double x = 0, y = 0;
};

// A rectangle of an image: values in rows. Outside of it, values are about 0.
struct Patch {
  int64_t left = 0, top = 0, width = 0, height = 0;
  std::vector<float> values = {};
};

struct GreyImage {
  explicit GreyImage(int64_t size) : size(size), values(size_t(size * size), 0) {}
  float& at(int64_t x, int64_t y) { return values[size_t(y * size + x)]; }
  float at(int64_t x, int64_t y) const { return values[size_t(y * size + x)]; }
  bool holds(int64_t x, int64_t y) const { return x >= 0 && y >= 0 && x < size && y < size; }

  float highest_with(const Patch& patch) const;  // maximum of the sum, where the patch is not 0
  void add(const Patch& patch, float times = 1);
  void keep_larger(const Patch& patch, float contrast);

  int64_t size;
  std::vector<float> values;
};

// Draws all points within `radius` of the line from a to b (a disc if a = b), clipped to an image of `size`. Values are
// from 0 to 1.
Patch draw_line(Point a, Point b, double radius, int64_t size);

}  // namespace cortado
