/** An input: its elements in order, and its sizes, which may be left out with one dimension or none. */
export interface Given<A extends Elements = Elements> {
  data: A;
  shape?: readonly number[];
}
/** A copy of an output or of state. `value` is the element of a tensor without dimensions. */
export interface Tensor<A extends Elements = Elements> {
  data: A;
  shape: number[];
  dtype: string;
  value?: number | bigint | boolean;
}
export interface Session {
  /** Run the model. An error leaves the state as it was. */
  run(inputs: Inputs): Outputs;
  /** Copies of what the model keeps from run to run. */
  state(): State;
  /** Replace state by name: all of it, or a part. */
  loadState(state: { [K in keyof State]?: Given<State[K]["data"]> }): void;
  /** Go back to the state that was exported. */
  reset(): void;
}
/** `source`: the address of the .wasm file (in node its path, too), its bytes, or the module compiled; `memoryBytes`:
 * memory for the first run, which grows. */
export declare function load(
  source: URL | string | BufferSource | WebAssembly.Module,
  memoryBytes?: number,
): Promise<Session>;
