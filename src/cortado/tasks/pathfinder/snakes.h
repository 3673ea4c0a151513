// Pathfinder's images: two long snakes of paddles among short ones, and two marked ends.
#pragma once

#include <array>
#include <vector>

#include "cortado/tasks/draws.h"
#include "cortado/tasks/pathfinder/raster.h"

namespace cortado {

struct SnakeSizes {
  int64_t window = 32, padding = 1;
  double paddle = 2, thickness = 0.5, marker = 1.5;  // length and width of a paddle, radius of a marker, in pixels
  // paddles of a long snake, of a short one; number of short snakes
  int64_t contour = 14, distractor = 4, distractors = 5;
  std::vector<int64_t> margins = {1};  // one of them is drawn per image
  int64_t seed_distance = 7;
  double continuity = 1;
  double contrast = 2, paddle_contrast = 0.75;  // of short snakes; long ones have contrast * paddle_contrast
};

struct Paddle {
  Point tail, head;
};
using Snake = std::vector<Paddle>;

struct SnakePicture {
  GreyImage image;  // values from 0 to the largest contrast
  std::array<Snake, 2> snakes;
  std::array<Point, 2> markers;  // the beginning of one long snake, and the end of the same or the other one
  bool connected = false;
};

SnakePicture draw_snakes(const SnakeSizes& sizes, Draws& draws);

}  // namespace cortado
