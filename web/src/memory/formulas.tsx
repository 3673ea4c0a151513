// The curves' formulas with numbers.
import { bytes } from "../shared/format";
import { type Settings, cachePerToken, kindOf, pairs, statePerLayer, stateSizes } from "./sizes";

export function Formulas({ settings }: { settings: Settings }) {
  const { layers, headSize, batch, cacheBytes, stateBytes, weights } = settings;
  const { name, formula } = kindOf(settings);
  const heads = pairs(settings);
  const times = batch > 1 ? `${batch} sequences × ` : "";
  return (
    <dl class="formulas soft">
      <div>
        <dt>Keys and values, O(n): every token adds</dt>
        <dd>{times}{layers} layers × {heads} heads × 2 × {headSize} × {cacheBytes} bytes
          = {bytes(batch * layers * cachePerToken(settings))}</dd>
      </div>
      <div>
        <dt>{name}, O(1)</dt>
        <dd>{times}{layers} layers × {stateBytes} bytes × {formula(stateSizes(settings))}
          : {bytes(batch * layers * statePerLayer(settings))}</dd>
      </div>
      <div>
        <dt>Weights</dt>
        <dd>{weights ? "counted, each as large as a number of the cache" : "not counted"}</dd>
      </div>
    </dl>
  );
}
