// What a conversion came to: report.json and report.svg.
#pragma once

#include "cortado/convert/linearize.h"

namespace cortado {

StageReport report_of(const Stage& stage);

// The stages of `result` into `folder`; the picture is of the first stage that has losses of several layers.
void write_report(const std::string& folder, const LinearizePlan& plan, const LinearizeResult& result);

}  // namespace cortado
