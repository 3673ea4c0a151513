// performer: linear attention whose feature map estimates the exponential by random orthogonal features (FAVOR+).
#include "cortado/mechanisms/linear/mixer.h"

namespace cortado {

extern const Mechanism kPerformer = {
    .name = "performer",
    .family = "linear attention",
    .paper = "Performer (Choromanski et al. 2020); Latte (2024) eq. 30-32",
    .equation = "o_t = S_t' phi(q_t) / (phi(q_t).z_t), E[phi(q).phi(k)] = exp(q.k / sqrt d)",
    .state = "H F (d + 2)",
    .primitives = {"gated_scan", "time_softmax", "running_max", "short_conv"},
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          return make_linear("performer", settings, context, "performer", /*gate=*/false);
        },
    .orderless = true,
};

}  // namespace cortado
