pub mod linear;
