use cube_kernels::argmax::{argmax, argmax_reference};
use cube_kernels::{Buffer, state};
use cubecl::client::Client;

use crate::support::{Numbers, each_device};

fn partials(values: &[f32]) -> Vec<u32> {
    values.iter().enumerate().flat_map(|(i, v)| [v.to_bits(), i as u32]).collect()
}

fn no_end(client: &Client) -> Buffer<u32> {
    Buffer::from_slice(client, &[u32::MAX])
}

#[test]
fn argmax_halts_after_an_end_token() {
    each_device(|client, caps| {
        let words = Buffer::from_slice(client, &[0u32; state::LEN]);
        let ring = Buffer::from_slice(client, &[0u32; 4]);
        let ends = Buffer::from_slice(client, &[9u32, 2, 7]);
        for row in [1usize, 2, 3] {
            let mut values = [0.0f32; 5];
            values[row] = 1.0;
            argmax(client, caps, &Buffer::from_slice(client, &partials(&values)), &words, &ring, &ends).unwrap();
        }
        let got = words.read_blocking(client).unwrap();
        assert_eq!((got[state::TOKEN], got[state::POSITION], got[state::STEP], got[state::HALTED]), (2, 2, 2, 1));
        assert_eq!(ring.read_blocking(client).unwrap(), [1, 2, 0, 0]);
    });
}

#[test]
fn argmax_advances_state_and_ring() {
    each_device(|client, caps| {
        let words = Buffer::from_slice(client, &[5u32, 1, 0, 0, 0, 0, 0, 0]);
        let ring = Buffer::from_slice(client, &[u32::MAX; 3]);
        let mut tokens = Vec::new();
        for (seed, n) in [1usize, 2, 7, 300, 9000].into_iter().enumerate() {
            let values = Numbers::new(seed as u64).f32s(n);
            argmax(client, caps, &Buffer::from_slice(client, &partials(&values)), &words, &ring, &no_end(client))
                .unwrap();
            tokens.push(argmax_reference(&values).unwrap());
            let got = words.read_blocking(client).unwrap();
            assert_eq!(got[state::TOKEN], tokens[seed]);
            assert_eq!(got[state::POSITION] as usize, 5 + tokens.len());
            assert_eq!(got[state::STEP] as usize, tokens.len());
            assert_eq!(got[state::ERROR], 0);
        }
        assert_eq!(ring.read_blocking(client).unwrap(), [tokens[3], tokens[4], tokens[2]]);
    });
}

#[test]
fn argmax_of_equals_takes_the_lowest_row() {
    each_device(|client, caps| {
        let mut values = vec![-3.0f32; 5000];
        values[4321] = 2.5;
        values[1234] = 2.5;
        let words = Buffer::from_slice(client, &[0u32; state::LEN]);
        let ring = Buffer::from_slice(client, &[0u32; 4]);
        argmax(client, caps, &Buffer::from_slice(client, &partials(&values)), &words, &ring, &no_end(client)).unwrap();
        assert_eq!(words.read_blocking(client).unwrap()[state::TOKEN], 1234);
    });
}

#[test]
fn argmax_of_broken_partial_sets_the_error_word() {
    each_device(|client, caps| {
        let mut words_in = partials(&[1.0, 2.0, 3.0]);
        words_in[3] = u32::MAX;
        let words = Buffer::from_slice(client, &[0u32; state::LEN]);
        let ring = Buffer::from_slice(client, &[0u32; 4]);
        argmax(client, caps, &Buffer::from_slice(client, &words_in), &words, &ring, &no_end(client)).unwrap();
        assert_eq!(words.read_blocking(client).unwrap()[state::ERROR], state::NOT_FINITE);
    });
}

#[test]
fn argmax_refuses_other_shapes() {
    each_device(|client, caps| {
        let words = Buffer::from_slice(client, &[0u32; state::LEN]);
        let ring = Buffer::from_slice(client, &[0u32; 4]);
        assert!(argmax(client, caps, &Buffer::from_slice(client, &[0u32; 3]), &words, &ring, &no_end(client)).is_err());
        assert!(argmax(client, caps, &Buffer::from_slice(client, &[0u32; 2]), &ring, &ring, &no_end(client)).is_err());
    });
}
