#include "cortado/base/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/human.h"

namespace cortado {
namespace {

// Escapes a text for use in XML.
std::string escaped_xml(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const char* word = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : nullptr;
    if (word) {
      result += word;
    } else {
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML has no control characters
    }
  }
  return result;
}

std::string svg_head(double width, double height, int font_size) {
  const std::string w = fixed(width, 1), h = fixed(height, 1);
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", w, "\" height=\"", h, "\" viewBox=\"0 0 ", w, " ",
                h, "\" font-family=\"sans-serif\" font-size=\"", font_size,
                "\" fill=\"#222222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
}

std::string svg_text(double x, double y, const std::string& words, const std::string& style) {
  return concat("<text x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" ", style, ">", escaped_xml(words), "</text>\n");
}

// A number with four significant digits.
std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// --- Line charts. ---

// All lengths are in pixels. The legend stands to the right of the plot and widens the picture.
constexpr double kLeft = 78, kTop = 44, kPlotWidth = 540, kPlotHeight = 320, kBelow = 56;
constexpr double kLegendGap = 18, kLegendLine = 19, kLegendSample = 28, kCharacter = 6.8;
constexpr size_t kMaxTicks = 12;

// Okabe and Ito's palette, which colour-blind people can tell apart. Further series repeat the colours with dashed
// lines.
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"};
constexpr const char* kDashes[] = {"", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\""};

// Writes whole numbers with thousands separators and other numbers in their shortest form.
std::string tick_label(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e7) return with_commas(static_cast<int64_t>(value));
  return short_number(value);
}

// One axis of the plot. Positions are computed on the axis's own scale: log2, log10 or linear.
class Axis {
 public:
  Axis(bool logarithmic, double base) : logarithmic_(logarithmic), unit_(std::log(base)), base_(base) {}

  bool shows(double value) const { return std::isfinite(value) && (!logarithmic_ || value > 0); }

  void include(double value) {
    low_ = std::min(low_, scaled(value));
    high_ = std::max(high_, scaled(value));
  }

  // Fixes the axis range. Call it after the last value: makes sure that the range is not empty and adds a margin of
  // `room`.
  void settle(double room) {
    if (low_ > high_) low_ = 0, high_ = 1;
    if (low_ == high_) low_ -= 0.5, high_ += 0.5;
    const double margin = room * (high_ - low_);
    const bool from_zero = !logarithmic_ && low_ >= 0 && low_ - margin < 0;
    low_ = from_zero ? 0 : low_ - margin;
    high_ += margin;
  }

  double place(double value) const { return (scaled(value) - low_) / (high_ - low_); }  // 0 at one end, 1 at the other

  std::vector<double> ticks() const {
    if (!logarithmic_) return linear_ticks(low_, high_, 1);
    if (base_ == 10 && high_ - low_ < 3) return decade_ticks();
    auto exponents = linear_ticks(low_, high_, 0);
    for (double& exponent : exponents) exponent = std::pow(base_, exponent);
    return exponents.size() >= 2 ? exponents : nearby_ticks();
  }

 private:
  double scaled(double value) const { return logarithmic_ ? std::log(value) / unit_ : value; }

  // Ticks at multiples of 1, 2 or 5 times a power of ten, about six of them. With `few` = 0 every whole number gets a
  // tick if all of them fit.
  static std::vector<double> linear_ticks(double low, double high, int few) {
    double step = 1;
    if (few || high - low >= static_cast<double>(kMaxTicks)) {
      const double rough = (high - low) / 6, power = std::pow(10, std::floor(std::log10(rough)));
      const double factor = rough / power;
      step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
    }
    std::vector<double> found;
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) found.push_back(k * step);
    return found;
  }

  std::vector<double> decade_ticks() const {
    std::vector<double> found;
    for (double power = std::floor(low_); power <= high_; ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double value = factor * std::pow(10, power);
        if (scaled(value) >= low_ - 1e-9 && scaled(value) <= high_ + 1e-9) found.push_back(value);
      }
    }
    return found.size() >= 2 ? found : nearby_ticks();
  }

  // Ticks for a range so narrow that it contains no power of the base.
  std::vector<double> nearby_ticks() const { return linear_ticks(std::pow(base_, low_), std::pow(base_, high_), 1); }

  bool logarithmic_;
  double unit_, base_;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -std::numeric_limits<double>::infinity();
};

class Drawing {
 public:
  explicit Drawing(const LineChart& chart) : chart_(chart), x_(chart.log_x, 2), y_(chart.log_y, 10) {
    size_t longest = 0;
    for (const auto& series : chart.series) {
      longest = std::max(longest, series.name.size());
      for (const auto& [x, y] : series.points) {
        if (!x_.shows(x) || !y_.shows(y)) continue;
        x_.include(x);
        y_.include(y);
      }
    }
    x_.settle(0.02);
    y_.settle(0.05);
    legend_width_ = chart.series.empty() ? 0 : kLegendGap + kLegendSample + kCharacter * static_cast<double>(longest);
  }

  std::string draw() {
    const double width = kLeft + kPlotWidth + legend_width_ + 16;
    const double height =
        std::max(kTop + kPlotHeight + kBelow, kTop + kLegendLine * static_cast<double>(chart_.series.size()) + 10);
    out_ = svg_head(width, height, 12);
    frame();
    for (size_t i = 0; i < chart_.series.size(); ++i) curve(i);
    return out_ + "</svg>\n";
  }

 private:
  static std::string number(double value) { return fixed(value, 1); }
  double left(double x) const { return kLeft + kPlotWidth * x_.place(x); }
  double top(double y) const { return kTop + kPlotHeight * (1 - y_.place(y)); }

  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    out_ += concat("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2), "\" y2=\"", number(y2),
                   "\" ", style, "/>\n");
  }

  void text(double x, double y, const std::string& words, const std::string& style) {
    out_ += svg_text(x, y, words, style);
  }

  void frame() {
    const double right = kLeft + kPlotWidth, bottom = kTop + kPlotHeight;
    constexpr const char* kGrid = "stroke=\"#dddddd\"";
    for (const double x : x_.ticks()) {
      line(left(x), kTop, left(x), bottom, kGrid);
      text(left(x), bottom + 17, tick_label(x), "text-anchor=\"middle\"");
    }
    for (const double y : y_.ticks()) {
      line(kLeft, top(y), right, top(y), kGrid);
      text(kLeft - 7, top(y) + 4, tick_label(y), "text-anchor=\"end\"");
    }
    line(kLeft, bottom, right, bottom, "stroke=\"#444444\"");
    line(kLeft, kTop, kLeft, bottom, "stroke=\"#444444\"");
    const double middle = kTop + kPlotHeight / 2;
    text(kLeft + kPlotWidth / 2, 24, chart_.title, "text-anchor=\"middle\" font-size=\"15\"");
    text(kLeft + kPlotWidth / 2, bottom + 42, chart_.x_label, "text-anchor=\"middle\"");
    text(18, middle, chart_.y_label,
         concat("text-anchor=\"middle\" transform=\"rotate(-90 18 ", number(middle), ")\""));
  }

  void curve(size_t index) {
    const auto& series = chart_.series[index];
    const std::string color = kColors[index % std::size(kColors)];
    const std::string style = concat("fill=\"none\" stroke=\"", color, "\" stroke-width=\"2\"",
                                     kDashes[index / std::size(kColors) % std::size(kDashes)]);
    std::string path;
    bool joined = false;
    for (const auto& [x, y] : series.points) {
      const bool shown = x_.shows(x) && y_.shows(y);
      if (shown) path += concat(joined ? " L " : path.empty() ? "M " : " M ", number(left(x)), " ", number(top(y)));
      joined = shown;
    }
    if (!path.empty()) out_ += concat("<path d=\"", path, "\" ", style, "/>\n");
    for (const auto& [x, y] : series.points) {
      if (!x_.shows(x) || !y_.shows(y)) continue;
      out_ +=
          concat("<circle cx=\"", number(left(x)), "\" cy=\"", number(top(y)), "\" r=\"3\" fill=\"", color, "\"/>\n");
    }
    const double at = kLeft + kPlotWidth + kLegendGap, row = kTop + kLegendLine * (static_cast<double>(index) + 0.5);
    line(at, row, at + kLegendSample - 8, row, style);
    text(at + kLegendSample, row + 4, series.name, "");
  }

  const LineChart& chart_;
  Axis x_, y_;
  double legend_width_ = 0;
  std::string out_;
};

// --- Heat maps. ---

// All lengths are in pixels.
constexpr double kPanel = 260, kGap = 30, kNames = 74, kAbove = 58, kUnder = 78, kScale = 46;
constexpr size_t kAcross = 4, kMostNames = 32;
constexpr int kShades = 64;  // neighbouring cells of equal shade are drawn as one rectangle

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
      const size_t row = i / kAcross, column = i % kAcross;
      panel(map_.panels[i], kNames + double(column) * (kNames + kPanel),
            40 + kAbove / 2 + double(row) * (kAbove + kPanel + kUnder));
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

  // Labels every row or column if there is room, otherwise every n-th.
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

std::string LineChart::svg() const { return Drawing(*this).draw(); }

std::string HeatMap::svg() const { return HeatMapDrawing(*this).draw(); }

}  // namespace cortado
