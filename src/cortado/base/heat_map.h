// Heat maps as SVG pictures.
#pragma once

#include <string>
#include <vector>

namespace cortado {

// Matrices beside each other, in one scale of colours from white (`low`) to dark blue (`high`). A number that can't be
// drawn (NaN, infinite) is grey.
struct HeatMap {
  struct Panel {
    std::string title;
    std::vector<std::vector<double>> rows;  // the first row is on top
  };

  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> x_names = {}, y_names = {};  // of columns and rows; empty: their numbers
  double low = 0, high = 1;
  std::vector<Panel> panels = {};

  // A whole SVG file: white background, panels in rows of four, the scale of colours below. The same map is always the
  // same text.
  std::string svg() const;
};

}  // namespace cortado
