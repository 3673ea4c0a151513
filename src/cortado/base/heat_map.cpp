#include "cortado/base/heat_map.h"

#include <algorithm>
#include <cmath>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/xml.h"

namespace cortado {
namespace {

// In pixels.
constexpr double kPanel = 260, kGap = 30, kNames = 74, kAbove = 58, kUnder = 78, kScale = 46;
constexpr size_t kAcross = 4, kMostNames = 32;
constexpr int kShades = 64;  // neighbours of the same shade are one rectangle

std::string shade_color(int shade) {
  const double share = double(shade) / (kShades - 1);
  const auto mix = [&](double white, double dark) { return int(std::lround(white + (dark - white) * share)); };
  return concat("rgb(", mix(255, 0), ",", mix(255, 45), ",", mix(255, 110), ")");
}

class HeatMapDrawing {
 public:
  explicit HeatMapDrawing(const HeatMap& map) : map_(map) {}

  std::string draw() {
    const size_t count = map_.panels.size(), across = std::min(std::max<size_t>(count, 1), kAcross);
    const size_t down = (count + kAcross - 1) / kAcross;
    const double width = double(across) * (kNames + kPanel) + kGap;
    const double height = 40 + double(down) * (kAbove + kPanel + kUnder) - kAbove / 2 + kScale;
    out_ = svg_head(width, height, 11);
    out_ += svg_text(width / 2, 24, map_.title, "text-anchor=\"middle\" font-size=\"15\"");
    for (size_t i = 0; i < count; ++i) {
      panel(map_.panels[i], kNames + double(i % kAcross) * (kNames + kPanel),
            40 + kAbove / 2 + double(i / kAcross) * (kAbove + kPanel + kUnder));
    }
    scale(kNames, height - kScale + 8);
    return out_ + "</svg>\n";
  }

 private:
  int shade_of(double value) const {
    if (!std::isfinite(value)) return -1;
    const double share = map_.high > map_.low ? (value - map_.low) / (map_.high - map_.low) : 0;
    return int(std::lround(std::clamp(share, 0.0, 1.0) * (kShades - 1)));
  }

  void rectangle(double x, double y, double width, double height, int shade) {
    out_ += concat("<rect x=\"", fixed(x, 2), "\" y=\"", fixed(y, 2), "\" width=\"", fixed(width, 2), "\" height=\"",
                   fixed(height, 2), "\" fill=\"", shade < 0 ? "#cccccc" : shade_color(shade), "\"/>\n");
  }

  void panel(const HeatMap::Panel& panel, double left, double top) {
    const size_t rows = panel.rows.size(), columns = rows ? panel.rows[0].size() : 0;
    if (!columns) return;
    const double width = kPanel / double(columns), height = kPanel / double(rows);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t first = 0, next = 0; first < columns; first = next) {
        const int shade = shade_of(panel.rows[row][first]);
        while (next < columns && shade_of(panel.rows[row][next]) == shade) ++next;
        if (shade != 0) {
          rectangle(left + double(first) * width, top + double(row) * height, double(next - first) * width, height,
                    shade);
        }
      }
    }
    out_ += concat("<rect x=\"", fixed(left, 1), "\" y=\"", fixed(top, 1), "\" width=\"", fixed(kPanel, 1),
                   "\" height=\"", fixed(kPanel, 1), "\" fill=\"none\" stroke=\"#444444\"/>\n");
    out_ += svg_text(left + kPanel / 2, top - 8, panel.title, "text-anchor=\"middle\" font-size=\"12\"");
    names(map_.x_names, columns, [&](size_t i, const std::string& name) {
      const double x = left + (double(i) + 0.5) * width + 4, y = top + kPanel + 8;
      out_ += svg_text(
          x, y, name,
          concat("text-anchor=\"end\" font-size=\"9\" transform=\"rotate(-90 ", fixed(x, 1), " ", fixed(y, 1), ")\""));
    });
    names(map_.y_names, rows, [&](size_t i, const std::string& name) {
      out_ += svg_text(left - 5, top + (double(i) + 0.5) * height + 3, name, "text-anchor=\"end\" font-size=\"9\"");
    });
    out_ += svg_text(left + kPanel / 2, top + kPanel + kUnder - 16, map_.x_label, "text-anchor=\"middle\"");
    out_ += svg_text(left - kNames + 14, top + kPanel / 2, map_.y_label,
                     concat("text-anchor=\"middle\" transform=\"rotate(-90 ", fixed(left - kNames + 14, 1), " ",
                            fixed(top + kPanel / 2, 1), ")\""));
  }

  // Every one where there is room, else some.
  template <typename Write>
  static void names(const std::vector<std::string>& known, size_t count, const Write& write) {
    const size_t step = (count + kMostNames - 1) / kMostNames;
    for (size_t i = 0; i < count; i += step) write(i, i < known.size() ? known[i] : std::to_string(i));
  }

  void scale(double left, double top) {
    for (int shade = 0; shade < kShades; ++shade) rectangle(left + 3.0 * shade, top, 3, 12, shade);
    out_ += svg_text(left, top + 26, short_number(map_.low), "text-anchor=\"middle\"");
    out_ += svg_text(left + 3.0 * kShades, top + 26, short_number(map_.high), "text-anchor=\"middle\"");
  }

  const HeatMap& map_;
  std::string out_;
};

}  // namespace

std::string HeatMap::svg() const { return HeatMapDrawing(*this).draw(); }

}  // namespace cortado
